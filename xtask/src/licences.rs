//! Every dependency's licence must allow what ours allows.

use serde::Deserialize;

use crate::run::{self, Failed};

/// Licences that go with Apache-2.0 in a binary that anybody may redistribute.
const ALLOWED: [&str; 12] = [
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "MIT",
    "MIT-0",
    "BSD-1-Clause",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "Unlicense",
    "CC0-1.0",
    "Unicode-3.0",
];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
}

pub(crate) fn check() -> Result<(), Failed> {
    let json = run::output(&run::cargo_program(), &["metadata", "--format-version", "1", "--locked"])?;
    let metadata: Metadata =
        serde_json::from_slice(&json).map_err(|error| Failed(format!("cannot read cargo's metadata: {error}")))?;
    let refused: Vec<String> = metadata
        .packages
        .iter()
        .filter(|package| !package.license.as_deref().is_some_and(allowed))
        .map(|package| {
            format!("{} {} ({})", package.name, package.version, package.license.as_deref().unwrap_or("none"))
        })
        .collect();
    if refused.is_empty() {
        eprintln!("{} packages, all licences allowed", metadata.packages.len());
        Ok(())
    } else {
        Err(Failed(format!("licences that are not on the list: {}", refused.join(", "))))
    }
}

/// Whether an SPDX expression of `OR`, `AND` and parentheses leaves us a choice of allowed licences. `/` is the old way
/// of writing `OR`.
fn allowed(expression: &str) -> bool {
    let expression = expression.replace('/', " OR ");
    let mut rest = expression.as_str();
    let result = any(&mut rest);
    result && rest.trim().is_empty()
}

fn any(rest: &mut &str) -> bool {
    let mut result = all(rest);
    while let Some(after) = rest.trim_start().strip_prefix("OR ") {
        *rest = after;
        result |= all(rest);
    }
    result
}

fn all(rest: &mut &str) -> bool {
    let mut result = one(rest);
    while let Some(after) = rest.trim_start().strip_prefix("AND ") {
        *rest = after;
        result &= one(rest);
    }
    result
}

fn one(rest: &mut &str) -> bool {
    *rest = rest.trim_start();
    if let Some(after) = rest.strip_prefix('(') {
        *rest = after;
        let result = any(rest);
        *rest = rest.trim_start().strip_prefix(')').unwrap_or("unbalanced");
        return result;
    }
    let end = [" OR ", " AND ", ")"].iter().filter_map(|stop| rest.find(stop)).min().unwrap_or(rest.len());
    let (name, after) = rest.split_at(end);
    *rest = after;
    ALLOWED.contains(&name.trim())
}

#[cfg(test)]
mod tests {
    use super::allowed;

    #[test]
    fn expressions_are_judged_by_the_choice_they_leave() {
        for good in [
            "MIT",
            "MIT OR Apache-2.0",
            "MIT/Apache-2.0",
            "GPL-3.0 OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR GPL-2.0",
        ] {
            assert!(allowed(good), "{good}");
        }
        for bad in ["GPL-3.0", "MIT AND GPL-3.0", "(MIT OR Apache-2.0) AND GPL-3.0", "", "(MIT", "MIT)"] {
            assert!(!allowed(bad), "{bad}");
        }
    }
}
