use std::io;
use std::path::PathBuf;

/// Why a log cannot be opened. Nothing of it was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("cannot use segments of {given} bytes: expected a multiple of 4096 from {least} to {most}")]
    SegmentBytes { given: u64, least: u64, most: u64 },
    #[error("cannot {tried} `{}`", .path.display())]
    Io { tried: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "`{}` has format version {version}, this program knows versions up to {known}: use the newer program that wrote it",
        .path.display()
    )]
    Newer { path: PathBuf, version: u32, known: u32 },
    #[error(
        "`{}` is not a segment of this log (foreign, renamed, or damaged beyond recognition): move it away if it was put here by mistake, else restore it from a copy",
        .path.display()
    )]
    Foreign { path: PathBuf },
    #[error("`{}` is missing although ledgers may have entries in it: put it back", .path.display())]
    Missing { path: PathBuf },
    #[error("cannot start the log thread")]
    Thread { source: io::Error },
}

/// A stretch of a file that is not what was written. Entries in it are answered with an error, those behind it are served.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Damage {
    pub path: PathBuf,
    /// In bytes.
    pub offset: u64,
    /// In bytes.
    pub len: u64,
}

/// What was found when a log was opened. Whoever opened it logs the damage.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Recovered {
    pub segments: usize,
    /// Segments whose commits had to be read because they were not sealed.
    pub scanned_segments: usize,
    /// Not deleted.
    pub ledgers: usize,
    pub damage: Vec<Damage>,
}
