//! The door through a real socket, in front of a whole broker on storage in memory.

mod client;
mod finding;
mod flow;
mod hostile;
mod stage;
