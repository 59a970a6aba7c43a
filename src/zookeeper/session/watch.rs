//! How the end of a watch gets from the connection to the future that waits for it.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use super::{Change, Watch};

/// Where the end of a watch is put.
pub(super) type Fired = Cell<Option<Change>>;

#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) path: String,
    pub(super) fired: Rc<Fired>,
}

impl Wanted {
    /// A watch on this node, and what to wait for.
    pub(super) fn on(path: &str) -> (Self, Watch) {
        let fired = Rc::new(Fired::new(None));
        let wanted = Self { path: path.to_owned(), fired: Rc::clone(&fired) };
        (wanted, Box::pin(poll_fn(move |_| fired.get().map_or(Poll::Pending, Poll::Ready))))
    }
}
