//! The JSON that programs read, held against its schema in docs/: each field is there, has the right type, and no field
//! is there that the schema does not know. (To readers the schema promises less: fields may be added.)
//!
//! It understands as much of JSON Schema as these schemas use, and panics on everything else.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value};

/// Panics unless this value is as docs/NAME.schema.json says.
#[track_caller]
pub(crate) fn expect_valid(name: &str, value: &Value) {
    let file = format!("{name}.schema.json");
    let mut faults = vec![];
    check(&file, &read(&file), value, "", &mut faults);
    assert!(faults.is_empty(), "not as {file} says: {faults:#?}\n{value:#}");
}

fn read(file: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(file);
    serde_json::from_slice(&fs::read(path).expect("the schema")).expect("JSON")
}

/// `at`: where in the document `value` is.
fn check(file: &str, schema: &Value, value: &Value, at: &str, faults: &mut Vec<String>) {
    let schema = schema.as_object().expect("a schema");
    for (keyword, wanted) in schema {
        let is_right = match keyword.as_str() {
            "$schema" | "title" | "description" | "$defs" | "properties" => true,
            "type" => types(wanted).any(|name| is_of_type(value, name)),
            "const" => value == wanted,
            "minimum" => value.as_i64().is_none_or(|number| Some(number) >= wanted.as_i64()),
            "minItems" => value.as_array().is_none_or(|items| Some(items.len() as u64) >= wanted.as_u64()),
            "format" => value.as_str().is_none_or(is_time),
            "required" => value.is_null() || has_these_fields_alone(value, wanted, schema),
            "items" => {
                for (number, item) in value.as_array().into_iter().flatten().enumerate() {
                    check(file, wanted, item, &format!("{at}/{number}"), faults);
                }
                true
            }
            "anyOf" => wanted.as_array().expect("schemas").iter().any(|schema| {
                let mut faults = vec![];
                check(file, schema, value, at, &mut faults);
                faults.is_empty()
            }),
            "$ref" => {
                let (other, pointer) = wanted.as_str().and_then(|text| text.split_once('#')).expect("a reference");
                let other = if other.is_empty() { file } else { other };
                check(other, read(other).pointer(pointer).expect("what is referred to"), value, at, faults);
                true
            }
            other => panic!("{file} uses {other}, which is not understood here"),
        };
        if !is_right {
            faults.push(format!("{at}: {keyword} {wanted}, but it is {value}"));
        }
    }
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, schema) in properties.into_iter().flatten() {
        if let Some(field) = value.get(name) {
            check(file, schema, field, &format!("{at}/{name}"), faults);
        }
    }
}

fn types(wanted: &Value) -> impl Iterator<Item = &str> {
    let several = wanted.as_array().into_iter().flatten();
    wanted.as_str().into_iter().chain(several.filter_map(Value::as_str))
}

fn is_of_type(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "number" => value.is_number(),
        "integer" => value.is_i64() || value.is_u64(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("{other} is no type"),
    }
}

fn has_these_fields_alone(value: &Value, wanted: &Value, schema: &Map<String, Value>) -> bool {
    let known = schema["properties"].as_object().expect("properties");
    let wanted: Vec<_> = wanted.as_array().expect("names").iter().filter_map(Value::as_str).collect();
    assert!(wanted.len() == known.len() && wanted.iter().all(|name| known.contains_key(*name)), "all are required");
    let there = value.as_object();
    there.is_some_and(|there| there.len() == wanted.len() && wanted.iter().all(|name| there.contains_key(*name)))
}

/// As RFC 3339 has it, in UTC, with milliseconds.
fn is_time(text: &str) -> bool {
    let shape: String = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    shape == "0000-00-00T00:00:00.000Z"
}

#[test]
fn what_is_not_as_the_schema_says_is_found() {
    let is_valid = |json: &str| {
        let mut faults = vec![];
        let value: Value = serde_json::from_str(json).expect("JSON");
        check("list.schema.json", &read("list.schema.json"), &value, "", &mut faults);
        faults.is_empty()
    };
    assert!(is_valid(r#"{"v":1,"locks":[{"path":"/l","holders":1,"waiters":0,"first":null}]}"#));
    let wrong = [
        r#"{"v":2,"locks":[]}"#,
        r#"{"v":1,"locks":[],"more":1}"#,
        r#"{"v":1,"locks":[{"path":"/l","holders":-1,"waiters":0,"first":null}]}"#,
        r#"{"v":1,"locks":[{"path":"/l","holders":1,"waiters":0,"first":{"position":1}}]}"#,
    ];
    assert!(!wrong.into_iter().any(is_valid));
}
