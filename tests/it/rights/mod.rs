//! Who may do what.

mod fuzz;
mod hostile; // servers that mean harm
pub(crate) mod login;
mod sasl;
mod secrets;
mod tls;
