//! The Python environment of the end-to-end tests, made once under the build folder.

use crate::run::{self, Failed};

/// The official client and the test runner, pinned.
const PACKAGES: [&str; 2] = ["pulsar-client==3.13.0", "pytest==8.4.2"];

/// The interpreter with everything installed. A change of [`PACKAGES`] makes a new environment.
pub(crate) fn python() -> Result<String, Failed> {
    let folder = run::target().join(format!("venv-{}", PACKAGES.join("-").replace("==", "-")));
    let python = folder.join("bin/python").display().to_string();
    let complete = folder.join("complete");
    if !complete.exists() {
        let folder = folder.display().to_string();
        run::command("python3", &["-m", "venv", "--clear", &folder], &[])?;
        let mut install = vec!["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
        install.extend(PACKAGES);
        run::command(&python, &install, &[])?;
        std::fs::write(&complete, "")
            .map_err(|error| Failed(format!("cannot write {}: {error}", complete.display())))?;
    }
    Ok(python)
}
