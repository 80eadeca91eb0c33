//! Runs Slurm's commands, each with a time limit.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::engine::Error;

/// What a command printed.
#[derive(Debug, Clone)]
pub struct Printed {
    pub ok: bool,
    pub out: String,
    pub err: String,
}

#[derive(Debug, Clone)]
pub struct Commands {
    /// The folder of Slurm's commands; `None`: they are on the path.
    pub bin: Option<PathBuf>,
    /// A command that takes longer is ended and counts as no answer.
    pub limit: Duration,
}

impl Commands {
    pub fn run(&self, name: &str, args: &[&str], input: &str) -> Result<Printed, Error> {
        let shown = || [&[name], args].concat().join(" ");
        let program = self.bin.as_ref().map_or_else(|| name.into(), |bin| bin.join(name));
        let spawned = Command::new(program)
            .args(args)
            // Seconds since 1970, in whatever zone and language the cluster is.
            .env("SLURM_TIME_FORMAT", "%s")
            .env("LC_ALL", "C")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = spawned.map_err(|error| Error::Absent { command: name.into(), error })?;
        let answer = converse(&mut child, input.to_owned(), self.limit);
        if answer.is_none() {
            let _ = child.kill();
        }
        let status = child.wait();
        let Some((out, err)) = answer else {
            let message = format!("no answer within {} s", self.limit.as_secs());
            return Err(Error::Unreachable { command: shown(), message });
        };
        Ok(Printed { ok: status.is_ok_and(|status| status.success()), out, err })
    }

    /// Runs a command that must succeed.
    pub fn ask(&self, name: &str, args: &[&str]) -> Result<String, Error> {
        let printed = self.run(name, args, "")?;
        if printed.ok {
            return Ok(printed.out);
        }
        let message = one_line(&printed.err);
        let command = [&[name], args].concat().join(" ");
        match is_denied(&message) {
            true => Err(Error::Denied { command, message }),
            false => Err(Error::Unreachable { command, message }),
        }
    }
}

pub fn is_denied(message: &str) -> bool {
    message.contains("ermission denied")
}

pub fn one_line(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    lines.join("; ").chars().take(300).collect()
}

/// Writes the input and reads all output; `None`: it took too long.
fn converse(child: &mut Child, input: String, limit: Duration) -> Option<(String, String)> {
    let (mut stdin, stdout, stderr) =
        (child.stdin.take()?, child.stdout.take()?, child.stderr.take()?);
    let (send, receive) = mpsc::channel();
    if !input.is_empty() {
        // A command that ends before it has read everything is judged by its output.
        thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
    } else {
        drop(stdin);
    }
    let read_all = |mut pipe: Box<dyn Read + Send>, send: mpsc::Sender<(bool, String)>, is_err| {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = pipe.read_to_end(&mut bytes);
            let _ = send.send((is_err, String::from_utf8_lossy(&bytes).into_owned()));
        });
    };
    read_all(Box::new(stdout), send.clone(), false);
    read_all(Box::new(stderr), send, true);
    let (mut out, mut err) = (String::new(), String::new());
    for _ in 0..2 {
        let (is_err, text) = receive.recv_timeout(limit).ok()?;
        *(if is_err { &mut err } else { &mut out }) = text;
    }
    Some((out, err))
}
