//! Taking a lock and giving it back.

mod and_locks;
mod and_locks_lost;
mod at_rest;
mod hold; // zklock hold
mod modes; // --shared, --permits
mod nested;
mod no_wait; // -n, -E
mod queue_order;
mod release;
mod timeout; // -w
mod waiter_queues_again;
