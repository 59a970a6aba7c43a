//! Who may do what.

mod fuzz;
mod hostile; // servers that mean harm
mod kerberos;
mod liar; // clients that lie
mod lies; // a network that does
pub(crate) mod login;
mod resumed; // what they say of a creation whose reply was lost
mod sasl;
mod secrets;
mod tls;
