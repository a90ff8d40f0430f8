//! The release binary on a folder of its own.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::connection::Connection;
use super::now;
use super::payload::Batch;
use super::target::Target;
use crate::run::{self, Failed};

/// Dropping it kills the process and removes its folder.
pub(crate) struct Server {
    binary: String,
    child: Child,
    folder: PathBuf,
    port: u16,
    web_port: u16,
    started: Instant,
}

impl Server {
    /// Starts on an empty folder under the build folder: the system's folder for temporary files may not be on a disk.
    pub(crate) fn start(binary: &str) -> Result<Self, Failed> {
        let folder = run::target().join(format!("bench-data-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).map_err(|error| Failed(format!("cannot create {}: {error}", folder.display())))?;
        let (port, web_port) = free_ports()?;
        let (child, started) = spawn(binary, &folder, port, web_port)?;
        Ok(Server { binary: binary.to_owned(), child, folder, port, web_port, started })
    }

    /// Returns how long the start took. The health check goes through topic and log.
    pub(crate) fn wait_until_healthy(&mut self) -> Result<Duration, Failed> {
        loop {
            if self.healthy() {
                return Ok(now() - self.started);
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(Failed(format!("the server ended early: {status}")));
            }
            if now() - self.started > Duration::from_secs(120) {
                return Err(Failed("the server does not get healthy".to_owned()));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn healthy(&self) -> bool {
        let ask = || -> std::io::Result<String> {
            let mut socket = TcpStream::connect((Ipv4Addr::LOCALHOST, self.web_port))?;
            socket.set_nodelay(true)?;
            socket
                .write_all(b"GET /admin/v2/brokers/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
            let mut answer = String::new();
            socket.read_to_string(&mut answer)?;
            Ok(answer)
        };
        ask().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
    }

    /// Publishes one message to a new topic; returns the time since the process started when its receipt is here.
    pub(crate) fn publish_one(&self) -> Result<Duration, Failed> {
        let topic = format!("persistent://public/default/startup-{}", super::wall_clock_ms());
        let mut connection = Connection::to_owner(&self.address(), &topic)?;
        connection.create_producer(&topic)?;
        connection.publish(&Batch::new(1, 1024), 0)?;
        connection.receipt()?;
        Ok(now() - self.started)
    }

    /// `kill -9` and the same folder again. The clock starts anew.
    pub(crate) fn kill_and_restart(&mut self) -> Result<(), Failed> {
        self.kill();
        (self.child, self.started) = spawn(&self.binary, &self.folder, self.port, self.web_port)?;
        Ok(())
    }

    /// A clean stop.
    pub(crate) fn stop(mut self) -> Result<(), Failed> {
        run::command("kill", &["-TERM", &self.child.id().to_string()], &[])?;
        let status = self.child.wait().map_err(|error| Failed(format!("cannot wait for the server: {error}")))?;
        if status.success() { Ok(()) } else { Err(Failed(format!("the server did not stop cleanly: {status}"))) }
    }

    pub(crate) fn target(&self, label: &str) -> Target {
        Target { label: label.to_owned(), address: self.address(), pids: vec![self.child.id()] }
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn kill(&mut self) {
        // An error means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn spawn(binary: &str, folder: &std::path::Path, port: u16, web_port: u16) -> Result<(Child, Instant), Failed> {
    let started = now();
    let child = Command::new(binary)
        .args(["standalone", "--data-dir"])
        .arg(folder)
        .args(["--set", &format!("brokerServicePort={port}"), "--set", &format!("webServicePort={web_port}")])
        .env("HULSE_LOG", "warn")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .map_err(|error| Failed(format!("cannot start {binary}: {error}")))?;
    Ok((child, started))
}

/// Two ports that nobody listens on right now.
fn free_ports() -> Result<(u16, u16), Failed> {
    let port = || {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        Ok((listener.local_addr()?.port(), listener))
    };
    let failed = |error: std::io::Error| Failed(format!("no free port: {error}"));
    let (first, _held) = port().map_err(failed)?;
    let (second, _) = port().map_err(failed)?;
    Ok((first, second))
}
