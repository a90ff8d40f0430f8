use std::fmt;

/// A promise that was not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken(pub String);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns with [`Broken`] unless the condition holds.
macro_rules! promise {
    ($kept:expr, $($what:tt)*) => {
        if !$kept {
            return Err(Broken(format!($($what)*)));
        }
    };
}
pub(crate) use promise;
