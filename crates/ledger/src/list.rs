use bookkeeper_proto::LedgerId;
use bookkeeper_proto::layout::LEDGERS_ROOT;
use bookkeeper_proto::ledger_path::{RootChild, parse_ledger_path};
use metadata::MetadataStore;

use crate::LedgerError;

/// All ledgers under the root, ascending; an error rather than a list with a hole in it.
pub(crate) async fn list(store: &dyn MetadataStore) -> Result<Vec<LedgerId>, LedgerError> {
    let root = children(store, LEDGERS_ROOT).await?;
    if root.is_empty() && !store.exists(LEDGERS_ROOT).await.map_err(|source| cannot_list(LEDGERS_ROOT, source))? {
        return Err(LedgerError::NotInitialized);
    }
    // Directories still to be visited, and how many levels lie between them and the leaves.
    let mut todo = Vec::new();
    for name in root {
        let path = format!("{LEDGERS_ROOT}/{name}");
        match RootChild::of(&name) {
            // A ledger of the flat layout: nobody here would ever find it, and garbage collection would take it for gone.
            RootChild::Special if is_leaf(&name) => return Err(LedgerError::UnexpectedNode { path }),
            RootChild::Special => {}
            kind @ (RootChild::Short | RootChild::Long) => todo.push((path, kind.directories_below())),
        }
    }
    let mut ledgers = Vec::new();
    while let Some((directory, levels)) = todo.pop() {
        for name in children(store, &directory).await? {
            let path = format!("{directory}/{name}");
            match levels {
                0 => match parse_ledger_path(&path) {
                    Some(ledger) => ledgers.push(ledger),
                    None => return Err(LedgerError::UnexpectedNode { path }),
                },
                // A ledger of another depth, or a layout that is not known.
                _ if !is_directory(&name) => return Err(LedgerError::UnexpectedNode { path }),
                _ => todo.push((path, levels - 1)),
            }
        }
    }
    ledgers.sort_unstable();
    Ok(ledgers)
}

/// Directories may vanish while we walk, with their last ledger: a directory without children is no error.
async fn children(store: &dyn MetadataStore, path: &str) -> Result<Vec<String>, LedgerError> {
    store.children(path).await.map_err(|source| cannot_list(path, source))
}

fn cannot_list(path: &str, source: metadata::MetadataError) -> LedgerError {
    LedgerError::Metadata { doing: "list", path: path.to_owned(), source }
}

fn is_directory(name: &str) -> bool {
    name.len() == 4 && name.bytes().all(|digit| digit.is_ascii_digit())
}

fn is_leaf(name: &str) -> bool {
    name.strip_prefix('L')
        .is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit()))
}
