//! Faults of the network and of servers.

mod ghosts; // servers that disagree
mod granted_timeout;
mod lost_create;
mod lost_data;
mod lost_replies;
mod network_cut;
mod outage_while_waiting;
mod servers_down;
mod servers_restart;
mod short_outage;
mod unfit_servers;
mod unreachable_servers;
