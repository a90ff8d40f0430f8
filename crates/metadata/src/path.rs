//! What a path is, and how it is ordered on disk.

use crate::MetadataError;

/// Longest path.
pub const MAX_PATH_BYTES: usize = 4096;

/// The parent of a path: `/a` of `/a/b`, `/` of `/a`, nothing of `/`.
pub fn parent_of(path: &str) -> Option<&str> {
    match path.rfind('/')? {
        _ if path == "/" => None,
        0 => Some("/"),
        end => Some(&path[..end]),
    }
}

/// Whether `path` is `prefix` or lies below it.
pub(crate) fn covers(prefix: &str, path: &str) -> bool {
    match path.strip_prefix(prefix) {
        Some(rest) => rest.is_empty() || rest.starts_with('/') || prefix == "/",
        None => false,
    }
}

/// A path that may be read.
pub(crate) fn check(path: &str) -> Result<(), MetadataError> {
    let reason = if !path.starts_with('/') {
        "it must start with `/`"
    } else if path.len() > MAX_PATH_BYTES {
        "it is longer than 4096 bytes"
    } else if path.contains('\0') {
        "it must not contain a zero byte"
    } else if path != "/" && path[1..].split('/').any(str::is_empty) {
        "it must not end with `/` or contain `//`"
    } else {
        return Ok(());
    };
    Err(MetadataError::InvalidPath { path: path.into(), reason })
}

/// A path that may be written.
pub(crate) fn check_writable(path: &str) -> Result<(), MetadataError> {
    check(path)?;
    if path == "/" {
        return Err(MetadataError::InvalidPath { path: path.into(), reason: "the root cannot be written" });
    }
    Ok(())
}

/// A path to which a number will be appended: unlike others it may end with `/`.
pub(crate) fn check_sequential(path: &str) -> Result<(), MetadataError> {
    match path.strip_suffix('/') {
        Some("") => Ok(()),
        Some(parent) => check(parent),
        None => check_writable(path),
    }
}

/// The key of a path: its depth (2 bytes, big-endian), then its bytes. So the children of one node lie side by side,
/// and none of their own children between them.
pub(crate) fn key(path: &str) -> Vec<u8> {
    let depth = if path == "/" { 0 } else { depth(path) };
    keyed(depth, path)
}

/// First and one-past-last key of the nodes `levels` (1 = children) below `path`.
pub(crate) fn keys_below(path: &str, levels: u16) -> (Vec<u8>, Vec<u8>) {
    let (base, depth) = if path == "/" { ("", 0) } else { (path, depth(path)) };
    let mut first = keyed(depth + levels, base);
    let mut end = first.clone();
    first.push(b'/');
    end.push(b'/' + 1);
    (first, end)
}

/// The path of a key made by [`key`]; nothing if it is not one.
pub(crate) fn of_key(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key.get(2..)?).ok()
}

fn depth(path: &str) -> u16 {
    // At most MAX_PATH_BYTES slashes.
    path.bytes().filter(|byte| *byte == b'/').count() as u16
}

fn keyed(depth: u16, path: &str) -> Vec<u8> {
    let mut key = Vec::with_capacity(path.len() + 3);
    key.extend_from_slice(&depth.to_be_bytes());
    key.extend_from_slice(path.as_bytes());
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents() {
        for (path, parent) in [("/", None), ("/a", Some("/")), ("/a/b", Some("/a")), ("/a/b/c", Some("/a/b"))] {
            assert_eq!(parent_of(path), parent, "{path}");
        }
    }

    #[test]
    fn covering_goes_by_whole_components() {
        for (prefix, path, expected) in [
            ("/", "/a", true),
            ("/", "/", true),
            ("/a", "/a", true),
            ("/a", "/a/b", true),
            ("/a", "/ab", false),
            ("/a/b", "/a", false),
        ] {
            assert_eq!(covers(prefix, path), expected, "{prefix} {path}");
        }
    }

    #[test]
    fn wrong_paths_are_refused() {
        for path in ["", "a", "/a/", "//", "/a//b", "/a\0b"] {
            assert!(check(path).is_err(), "{path:?}");
        }
        assert!(check("/").is_ok() && check_writable("/").is_err());
        for (path, ok) in [("/a/", true), ("/", true), ("/a/ID-", true), ("/a//", false), ("x", false)] {
            assert_eq!(check_sequential(path).is_ok(), ok, "{path:?}");
        }
    }

    #[test]
    fn only_children_lie_in_the_children_range() {
        let (first, end) = keys_below("/a", 1);
        for (path, inside) in
            [("/a/b", true), ("/a/b-c", true), ("/a/b/c", false), ("/a", false), ("/ab", false), ("/a-b/c", false)]
        {
            let key = key(path);
            assert_eq!(first <= key && key < end, inside, "{path}");
        }
        let (first, end) = keys_below("/", 1);
        assert!(first <= key("/a") && key("/a") < end && key("/a/b") >= end && key("/") < first);
    }
}
