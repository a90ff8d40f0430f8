//! Running programs and saying what takes how long.

use std::path::PathBuf;
use std::process::Command;

/// What went wrong, for a developer.
pub(crate) struct Failed(pub(crate) String);

/// Prints the step's name before and its duration after it.
pub(crate) fn step(name: &str, run: impl FnOnce() -> Result<(), Failed>) -> Result<(), Failed> {
    eprintln!("\n== {name}");
    #[expect(clippy::disallowed_methods, reason = "progress for a person at the terminal")]
    let started = std::time::Instant::now();
    run()?;
    eprintln!("== {name}: {:.1} s", started.elapsed().as_secs_f64());
    Ok(())
}

/// Runs a program to its end; anything but exit code 0 is a failure.
pub(crate) fn command(program: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Result<(), Failed> {
    let shown = format!("{program} {}", arguments.join(" "));
    let status = Command::new(program)
        .args(arguments)
        .envs(variables.iter().copied())
        .status()
        .map_err(|error| Failed(format!("cannot run `{shown}`: {error}")))?;
    if status.success() { Ok(()) } else { Err(Failed(format!("`{shown}` failed: {status}"))) }
}

pub(crate) fn cargo(arguments: &[&str]) -> Result<(), Failed> {
    command(&cargo_program(), arguments, &[])
}

pub(crate) fn cargo_program() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}

/// Cargo's build folder.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from)
}

/// Builds the release binary and returns where it is.
pub(crate) fn release_binary() -> Result<String, Failed> {
    cargo(&["build", "--release", "--package", "hulse"])?;
    Ok(target().join("release/hulse").display().to_string())
}

/// What a program prints.
pub(crate) fn output(program: &str, arguments: &[&str]) -> Result<Vec<u8>, Failed> {
    let shown = format!("{program} {}", arguments.join(" "));
    let done = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|error| Failed(format!("cannot run `{shown}`: {error}")))?;
    if done.status.success() {
        Ok(done.stdout)
    } else {
        Err(Failed(format!("`{shown}` failed: {}", String::from_utf8_lossy(&done.stderr))))
    }
}
