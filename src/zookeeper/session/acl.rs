//! The ACLs of the nodes that we create.

use crate::zookeeper::login::Protection;
use crate::zookeeper::wire::request::Acl;

/// What others may do with our nodes, and with the parents that we create.
const OTHERS_READ: Acl<'_> = Acl { permissions: Acl::READ, ..Acl::ANYONE };
const OTHERS_QUEUE: Acl<'_> = Acl { permissions: Acl::READ | Acl::CREATE, ..Acl::ANYONE };

/// Who may do what with a node of ours.
pub(super) const fn of_node(protection: Protection) -> &'static [Acl<'static>] {
    match protection {
        Protection::Open => &[Acl::ANYONE],
        Protection::Creator => &[Acl::CREATOR],
        Protection::Read => &[Acl::CREATOR, OTHERS_READ],
    }
}

/// Who may do what with a missing parent that we create. Contenders of other users queue there.
pub(super) const fn of_parent(protection: Protection) -> &'static [Acl<'static>] {
    match protection {
        Protection::Read => &[Acl::CREATOR, OTHERS_QUEUE],
        protection => of_node(protection),
    }
}
