//! How messages put errors of the system.

use std::io;

/// An I/O error without the words that std puts around it.
pub fn brief(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.strip_prefix("failed to lookup address information: ").unwrap_or(&text);
    let text = text.split(" (os error").next().unwrap_or(text);
    text.to_owned()
}
