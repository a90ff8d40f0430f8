//! How many connections the broker takes, in all and from one address.

use std::{net::IpAddr, sync::Arc};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// `None`: no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConnectionLimits {
    /// `brokerMaxConnections`
    pub total: Option<usize>,
    /// `brokerMaxConnectionsPerIp`
    pub per_ip: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    #[error("Reached the maximum number of connections")]
    Total,
    #[error("Reached the maximum number of connections on address {0}")]
    PerIp(IpAddr),
}

#[derive(Debug)]
pub(super) struct Admission {
    limits: ConnectionLimits,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    total: usize,
    per_ip: FxHashMap<IpAddr, usize>,
}

/// The place of one connection; dropping it frees the place.
#[derive(Debug)]
pub(super) struct Seat {
    admission: Arc<Admission>,
    ip: IpAddr,
}

impl Admission {
    pub(super) fn new(limits: ConnectionLimits) -> Arc<Self> {
        Arc::new(Self { limits, open: Mutex::default() })
    }

    pub(super) fn admit(self: &Arc<Self>, ip: IpAddr) -> Result<Seat, Refused> {
        let mut open = self.open.lock();
        if self.limits.total.is_some_and(|max| open.total >= max) {
            return Err(Refused::Total);
        }
        let from_here = open.per_ip.get(&ip).copied().unwrap_or(0);
        if self.limits.per_ip.is_some_and(|max| from_here >= max) {
            return Err(Refused::PerIp(ip));
        }
        open.total += 1;
        open.per_ip.insert(ip, from_here + 1);
        Ok(Seat { admission: Arc::clone(self), ip })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut open = self.admission.open.lock();
        open.total -= 1;
        if let Some(count) = open.per_ip.get_mut(&self.ip) {
            *count -= 1;
            if *count == 0 {
                open.per_ip.remove(&self.ip);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seat_is_free_again_after_its_connection() {
        let a: IpAddr = [10, 0, 0, 1].into();
        let b: IpAddr = [10, 0, 0, 2].into();
        let admission = Admission::new(ConnectionLimits { total: Some(2), per_ip: Some(1) });
        let first = admission.admit(a).unwrap();
        assert_eq!(admission.admit(a).unwrap_err(), Refused::PerIp(a));
        let _second = admission.admit(b).unwrap();
        assert_eq!(admission.admit(a).unwrap_err(), Refused::Total);
        drop(first);
        let _third = admission.admit(a).unwrap();
        assert_eq!(admission.admit(b).unwrap_err(), Refused::Total);
    }
}
