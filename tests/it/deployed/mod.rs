//! zklock as it is deployed: on two hosts, under systemd and cron. scripts/test runs these with `--all`.

mod cron;
mod standby; // the unit of the README
mod units; // what a unit has to say

/// The only block of the README in this language.
fn block_of_the_readme(language: &str) -> &'static str {
    let readme = include_str!("../../../README.md");
    let [_, rest] = readme.split(&format!("\n```{language}\n")).collect::<Vec<_>>()[..] else {
        panic!("not one block in {language}")
    };
    rest.split_once("```").expect("it ends").0
}
