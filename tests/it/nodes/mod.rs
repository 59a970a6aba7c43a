//! What is in ZooKeeper.

mod contender_node;
mod foreign_children;
mod interop; // Curator, kazoo and others
mod older_servers;
mod parents_and_chroot;
mod previous;
mod sequence_numbers;
mod single;
mod tokens;
