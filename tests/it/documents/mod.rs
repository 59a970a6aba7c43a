//! Documents and source.

mod completions;
pub(crate) mod generated; // the man page and the completions are up to date
mod layering;
pub(crate) mod readme;
pub(crate) mod readme_recipes;
mod recipes;
