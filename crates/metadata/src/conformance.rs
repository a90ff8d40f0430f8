//! The rules of [`MetadataStore`], one function each, to be run against every store.
