//! Documents and source.

mod command_lines;
mod completions;
pub(crate) mod generated; // the manual pages and the completions are up to date
mod hold_recipes;
mod layering;
mod links;
mod messages;
mod options_page; // docs/options.md
mod pages; // the manual pages
pub(crate) mod readme;
pub(crate) mod readme_recipes;
mod recipes;
