//! Figures of the door for metrics. Relaxed: each stands for itself.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Debug, Default)]
pub struct NativeCounters {
    opened: AtomicU64,
    closed: AtomicU64,
    handshakes: AtomicU64,
    refused: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    paused: AtomicU64,
    checksum_errors: AtomicU64,
}

/// One reading of [`NativeCounters`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NativeStats {
    /// Connections accepted since the start (`pulsar_connection_created_total_count`).
    pub opened: u64,
    /// Connections ended since the start (`pulsar_connection_closed_total_count`).
    pub closed: u64,
    /// Connections open now (`pulsar_active_connections`).
    pub active: u64,
    /// Completed handshakes (`pulsar_connection_create_success_count`).
    pub handshakes: u64,
    /// Connections that ended without one, refused ones included (`pulsar_connection_create_fail_count`).
    pub refused: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// Connections that are not read now, for back-pressure (`pulsar_broker_throttled_connections`).
    pub paused: u64,
    /// Messages refused because their checksum was wrong.
    pub checksum_errors: u64,
}

impl NativeCounters {
    pub fn read(&self) -> NativeStats {
        // `closed` first, so that `active` never falls below zero.
        let closed = self.closed.load(Relaxed);
        let opened = self.opened.load(Relaxed);
        NativeStats {
            opened,
            closed,
            active: opened.saturating_sub(closed),
            handshakes: self.handshakes.load(Relaxed),
            refused: self.refused.load(Relaxed),
            bytes_in: self.bytes_in.load(Relaxed),
            bytes_out: self.bytes_out.load(Relaxed),
            paused: self.paused.load(Relaxed),
            checksum_errors: self.checksum_errors.load(Relaxed),
        }
    }

    pub(super) fn opened(&self) {
        self.opened.fetch_add(1, Relaxed);
    }

    pub(super) fn closed(&self) {
        self.closed.fetch_add(1, Relaxed);
    }

    pub(super) fn handshake(&self) {
        self.handshakes.fetch_add(1, Relaxed);
    }

    pub(super) fn refused(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    pub(super) fn received(&self, bytes: usize) {
        self.bytes_in.fetch_add(bytes as u64, Relaxed);
    }

    pub(super) fn sent(&self, bytes: usize) {
        self.bytes_out.fetch_add(bytes as u64, Relaxed);
    }

    pub(super) fn paused(&self) {
        self.paused.fetch_add(1, Relaxed);
    }

    pub(super) fn resumed(&self) {
        self.paused.fetch_sub(1, Relaxed);
    }

    pub(super) fn checksum_error(&self) {
        self.checksum_errors.fetch_add(1, Relaxed);
    }
}
