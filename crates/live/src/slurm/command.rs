//! Runs Slurm's commands, each with a time limit.
//!
//! A command is talked to on the caller's thread, with pipes that never block. Threads that read the
//! pipes would each allocate from an arena of their own, and a scheduler that runs for months would
//! keep what every arena once held.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio};

use super::trouble;
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
        let mut child = spawned.map_err(|error| trouble::absent(name, &error))?;
        let answer = converse(&mut child, input.as_bytes(), self.limit);
        if answer.is_none() {
            let _ = child.kill();
        }
        let status = child.wait();
        let Some((out, err)) = answer else {
            let message = format!("no answer within {} s", self.limit.as_secs());
            return Err(trouble::unreachable(&shown(), &message));
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
            true => Err(trouble::denied(&command, &message)),
            false => Err(trouble::unreachable(&command, &message)),
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
fn converse(child: &mut Child, mut input: &[u8], limit: Duration) -> Option<(String, String)> {
    let deadline = Instant::now() + limit;
    let mut stdin = child.stdin.take();
    let mut out = Output::new(child.stdout.take()?)?;
    let mut err = Output::new(child.stderr.take()?)?;
    if let Some(stdin) = &stdin {
        ioctl_fionbio(stdin, true).ok()?;
    }
    loop {
        if let Some(to) = &mut stdin {
            match to.write(input) {
                Ok(written) => input = &input[written..],
                Err(error) if is_not_ready(&error) => {}
                // A command that ends before it has read everything is judged by its output.
                Err(_) => input = &[],
            }
        }
        if input.is_empty() {
            // Closed, so that the command knows that there is no more.
            stdin = None;
        }
        out.read();
        err.read();
        let mut open: Vec<PollFd> = Vec::with_capacity(3);
        open.extend(stdin.iter().map(|pipe| PollFd::new(pipe, PollFlags::OUT)));
        open.extend(out.pipe.iter().map(|pipe| PollFd::new(pipe, PollFlags::IN)));
        open.extend(err.pipe.iter().map(|pipe| PollFd::new(pipe, PollFlags::IN)));
        if out.pipe.is_none() && err.pipe.is_none() {
            break;
        }
        let left = deadline.checked_duration_since(Instant::now())?;
        match poll(&mut open, Some(&Timespec::try_from(left).ok()?)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Some((text(out.bytes), text(err.bytes)))
}

/// What a command has printed so far; its end of the pipe is open while `pipe` is there.
struct Output<P> {
    pipe: Option<P>,
    bytes: Vec<u8>,
}

impl<P: Read + AsFd> Output<P> {
    fn new(pipe: P) -> Option<Self> {
        ioctl_fionbio(&pipe, true).ok()?;
        Some(Self { pipe: Some(pipe), bytes: Vec::new() })
    }

    /// Takes what is there now.
    fn read(&mut self) {
        let Some(pipe) = &mut self.pipe else { return };
        match pipe.read_to_end(&mut self.bytes) {
            Err(error) if is_not_ready(&error) => {}
            _ => self.pipe = None,
        }
    }
}

/// Whether a pipe is only not ready yet.
fn is_not_ready(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, input: &str, limit: Duration) -> Result<Printed, Error> {
        let commands = Commands { bin: Some("/bin".into()), limit };
        commands.run("sh", &["-c", script], input)
    }

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn both_outputs_are_read_beside_a_large_input() {
        // Far more than a pipe holds, each way: whoever waits for the other end waits for ever.
        let input = "line of input\n".repeat(50_000);
        let printed = shell("tee /dev/stderr", &input, MINUTE).expect("an answer");
        assert!(printed.ok);
        assert!(printed.out == input && printed.err == input, "every byte of both");
    }

    #[test]
    fn a_command_that_does_not_read_its_input_is_judged_by_its_output() {
        let input = "x".repeat(1 << 20);
        let printed = shell("exec 0<&-; echo done; exit 3", &input, MINUTE).expect("an answer");
        assert_eq!((printed.out.as_str(), printed.ok), ("done\n", false));
    }

    #[test]
    fn a_command_that_takes_too_long_is_ended() {
        let begin = Instant::now();
        let error = shell("exec sleep 600", "", Duration::from_millis(200)).expect_err("too long");
        assert!(matches!(error, Error::Passing(_)), "{error}");
        assert!(begin.elapsed() < MINUTE);
    }
}
