//! PostgreSQL servers, driven by the library that the wrapper uses. As root the servers run as uid 65534.

mod closing;
mod damage;
mod device;
mod forks;
mod lab;
mod libraries;
mod limits;
mod mounted;
mod power;
mod primary;
mod roles;
mod rule;
mod slots;
mod standby;
mod start;
mod tls;
