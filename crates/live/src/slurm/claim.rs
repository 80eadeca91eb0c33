//! One scheduler a partition, whatever host it runs on.
//!
//! The right to decide is kept in Slurm itself, as a job that stays held. Slurm numbers its jobs one
//! after the other, so of two schedulers that claim at once the one with the lower number wins. The
//! holder renews the time in the job's comment; a claim that was not renewed for `LEASE_S` is void.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use hither_core::Seconds;

use super::command::{Commands, one_line};
use super::unix_s;
use crate::engine::{Error, Key};

/// The name of the jobs that are claims.
pub const NAME: &str = "hither-claim";
const LEASE_S: Seconds = 60.0;
const RENEW_EVERY: Duration = Duration::from_secs(15);

/// A partition that this process decides for.
#[derive(Debug)]
pub struct Claim {
    partition: String,
    job: Key,
    renew_due: Instant,
}

/// A claim as Slurm lists it.
#[derive(Debug, PartialEq)]
struct Listed {
    job: Key,
    host: String,
    renewed_s: Seconds,
}

/// Why there is no claim.
#[derive(Debug)]
pub enum NoClaim {
    /// Slurm takes no job from this user; the words say why.
    Refused(String),
    Error(Error),
}

impl From<Error> for NoClaim {
    fn from(error: Error) -> Self {
        NoClaim::Error(error)
    }
}

impl Claim {
    /// Claims a partition. No other process of this host may have a claim on it: those of this host
    /// that are found were left by schedulers that were killed.
    pub fn take(commands: &Commands, partition: &str) -> Result<Self, NoClaim> {
        let job = submit(commands, partition)?;
        let number = |job: &Key| job.parse::<u64>().unwrap_or(u64::MAX);
        for other in list(commands, partition)? {
            let silent_s = unix_s() - other.renewed_s;
            if other.job == job {
                continue;
            }
            if other.host == host() || silent_s > LEASE_S {
                commands.run("scancel", &[&other.job], "")?;
            } else if number(&other.job) < number(&job) {
                commands.run("scancel", &[&job], "")?;
                let (partition, host) = (partition.to_owned(), other.host);
                return Err(Error::Claimed { partition, host, silent_s }.into());
            }
        }
        Ok(Self { partition: partition.into(), job, renew_due: Instant::now() + RENEW_EVERY })
    }

    /// Renews the claim in time. A claim that is gone is made again: an operator has cancelled it, a
    /// controller that crashed has forgotten it, or another host has found it void.
    pub fn keep(&mut self, commands: &Commands, waiting: &HashSet<&Key>) -> Result<(), Error> {
        if !waiting.contains(&self.job) {
            match Self::take(commands, &self.partition) {
                Ok(claim) => *self = claim,
                Err(NoClaim::Error(error)) => return Err(error),
                Err(NoClaim::Refused(message)) => {
                    let partition = self.partition.clone();
                    return Err(Error::Unclaimed { partition, message });
                }
            }
        } else if Instant::now() >= self.renew_due {
            let (job, comment) = (format!("jobid={}", self.job), format!("comment={}", comment()));
            commands.run("scontrol", &["update", &job, &comment], "")?;
            self.renew_due = Instant::now() + RENEW_EVERY;
        }
        Ok(())
    }
}

fn submit(commands: &Commands, partition: &str) -> Result<Key, NoClaim> {
    let comment = format!("--comment={}", comment());
    let args = ["--parsable", "-H", "-p", partition, "-J", NAME, "-D", "/", "-o", "/dev/null"];
    let args = [&args[..], &[&comment, "--wrap", "true"]].concat();
    let printed = match commands.run("sbatch", &args, "") {
        Ok(printed) => printed,
        Err(error @ Error::Absent { .. }) => return Err(NoClaim::Refused(error.to_string())),
        Err(error) => return Err(error.into()),
    };
    match printed.out.trim().split(';').next() {
        Some(job) if printed.ok && !job.is_empty() => Ok(job.to_owned()),
        _ if printed.err.contains("contact slurm controller") => {
            let message = one_line(&printed.err);
            Err(Error::Unreachable { command: "sbatch".into(), message }.into())
        }
        _ => Err(NoClaim::Refused(one_line(&printed.err))),
    }
}

fn list(commands: &Commands, partition: &str) -> Result<Vec<Listed>, Error> {
    let args = ["-h", "-a", "-t", "PD", "-p", partition, "-n", NAME, "-o", "%i|%k"];
    Ok(commands.ask("squeue", &args)?.lines().filter_map(listed).collect())
}

fn listed(line: &str) -> Option<Listed> {
    let (job, comment) = line.split_once('|')?;
    let word = |key: &str| comment.split_whitespace().find_map(|word| word.strip_prefix(key));
    let (host, renewed) = (word("host=")?, word("renewed=")?);
    Some(Listed { job: job.into(), host: host.into(), renewed_s: renewed.parse().ok()? })
}

fn comment() -> String {
    format!("{NAME} host={} renewed={:.0}", host(), unix_s())
}

fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let own = listed(&format!("17|{}", comment())).unwrap();
        assert_eq!((own.job.as_str(), own.host), ("17", host()));
        assert!((unix_s() - own.renewed_s).abs() < 2.0);
        assert_eq!(listed("18|a user's own words"), None);
        assert_eq!(listed(""), None);
    }
}
