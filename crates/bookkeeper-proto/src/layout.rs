//! What a new cluster writes under the ledgers root besides its ledgers.

/// The root of everything BookKeeper keeps in the metadata store.
pub const LEDGERS_ROOT: &str = "/ledgers";
/// Which ledger manager laid the tree out: a bookie configured for another one must refuse to start.
pub const LAYOUT_PATH: &str = "/ledgers/LAYOUT";
/// The cluster's UUID in 36 ASCII characters: bookies of another cluster delete nothing.
pub const INSTANCE_ID_PATH: &str = "/ledgers/INSTANCEID";
/// Children: the bookies that take writes.
pub const AVAILABLE_PATH: &str = "/ledgers/available";
/// Children: the bookies that only read.
pub const READ_ONLY_PATH: &str = "/ledgers/available/readonly";
/// Prefix of the sequential nodes whose numbers become ledger ids below 2^31.
pub const ID_GENERATOR_PREFIX: &str = "/ledgers/idgen/ID-";
/// The content of [`LAYOUT_PATH`] for the hierarchical manager (short paths below 2^31 - 1, long ones from there on):
/// layout version, class and version of the manager; no line feed at the end.
pub const HIERARCHICAL_LAYOUT: &str = "2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1";
