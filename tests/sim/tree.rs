//! The tree of nodes.

use std::rc::Rc;

use zklock::zookeeper::session::NodeStat;

use crate::state::Path;

/// A node, as one server knows it.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) path: Path,
    pub(crate) data: Rc<[u8]>,
    pub(crate) czxid: i64,
    /// The id of the session that owns it; 0 for none.
    pub(crate) owner: i64,
    /// The sequence number that its next child will get.
    pub(crate) counter: i32,
    /// How often its data was set.
    pub(crate) version: i32,
    /// When it was created and when its data was set last, in milliseconds.
    pub(crate) created: i64,
    pub(crate) written: i64,
}

impl Node {
    /// One that is created now, by the transaction `czxid`.
    pub(crate) fn new(path: &str, data: Rc<[u8]>, owner: i64, czxid: i64, now: i64) -> Self {
        Self { path: Path::from(path), data, czxid, owner, counter: 0, version: 0, created: now, written: now }
    }

    pub(crate) fn stat(&self) -> NodeStat {
        NodeStat {
            czxid: self.czxid,
            owner: self.owner,
            created: self.created,
            written: self.written,
            version: self.version,
        }
    }
}

/// All nodes, as one server knows them.
#[derive(Clone, Default)]
pub(crate) struct Tree(Vec<Node>);

impl Tree {
    pub(crate) fn get(&self, path: &str) -> Option<&Node> {
        self.0.iter().find(|node| &*node.path == path)
    }

    pub(crate) fn nodes(&self) -> &[Node] {
        &self.0
    }

    /// The children of `path`.
    pub(crate) fn below<'t>(&'t self, path: &'t str) -> impl Iterator<Item = &'t Node> + Clone {
        self.0.iter().filter(move |node| node.path.strip_prefix(path).is_some_and(|name| name.starts_with('/')))
    }

    /// Their names.
    pub(crate) fn children<'t>(&'t self, path: &'t str) -> impl Iterator<Item = &'t str> + Clone {
        self.below(path).map(|node| &node.path[path.len() + 1..])
    }

    pub(crate) fn apply(&mut self, effect: &Effect) {
        match effect {
            Effect::Create(node) => {
                self.0.push(node.clone());
                if let Some((parent, _)) = node.path.rsplit_once('/')
                    && let Some(parent) = self.0.iter_mut().find(|node| &*node.path == parent)
                {
                    parent.counter += 1;
                }
            }
            Effect::Delete(path) => self.0.retain(|node| node.path != *path),
            Effect::Set { path, data, written } => {
                if let Some(node) = self.0.iter_mut().find(|node| node.path == *path) {
                    node.data = Rc::clone(data);
                    node.version += 1;
                    node.written = *written;
                }
            }
        }
    }
}

/// A change that a transaction makes.
pub(crate) enum Effect {
    Create(Node),
    Delete(Path),
    Set { path: Path, data: Rc<[u8]>, written: i64 },
}
