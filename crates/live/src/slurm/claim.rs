//! One scheduler a partition, whatever host it runs on.
//!
//! The right to decide is kept in Slurm itself, as a job that stays held. Slurm numbers its jobs one
//! after the other, so of two schedulers that claim at once the one with the lower number wins. The
//! holder renews the time in the job's comment; a claim that was not renewed for `LEASE_S` is void.

use std::collections::HashSet;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use hither_core::Seconds;

use super::command::{Commands, one_line};
use super::{trouble, unix_s};
use crate::engine::{Error, Key};

/// The name of the jobs that are claims.
pub const NAME: &str = "hither-claim";
/// A claim that was not renewed for so long may be void.
pub const LEASE_S: Seconds = 60.0;
const RENEW_EVERY: Duration = Duration::from_secs(15);
/// Clocks of hosts differ. A claim that looks void by the clock is watched for so long: one that is renewed
/// meanwhile is not void.
const WATCH: Duration = Duration::from_secs(20);

/// A partition that this process decides for.
#[derive(Debug)]
pub struct Claim {
    partition: String,
    job: Key,
    renew_due: Instant,
}

/// A claim as Slurm lists it. Users who may not decide for a partition cannot claim it.
#[derive(Debug, Clone, PartialEq)]
pub struct Listed {
    pub job: Key,
    pub host: String,
    pub renewed_s: Seconds,
}

impl Listed {
    /// Whether its holder has shown that it lives, by the clock.
    pub fn is_fresh(&self) -> bool {
        (unix_s() - self.renewed_s).abs() <= LEASE_S
    }

    pub fn is_of_this_host(&self) -> bool {
        self.host == host()
    }
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
    pub fn take(commands: &Commands, partition: &str, slurm_user: &str) -> Result<Self, NoClaim> {
        let job = submit(commands, partition)?;
        let number = |job: &Key| job.parse::<u64>().unwrap_or(u64::MAX);
        for other in list(commands, partition, slurm_user)? {
            let silent_s = (unix_s() - other.renewed_s).abs();
            if other.job == job {
                continue;
            }
            if other.host == host() || is_void(commands, partition, slurm_user, &other)? {
                commands.run("scancel", &[&other.job], "")?;
            } else if number(&other.job) < number(&job) {
                commands.run("scancel", &[&job], "")?;
                return Err(trouble::claimed(partition, &other.host, silent_s).into());
            }
        }
        Ok(Self { partition: partition.into(), job, renew_due: Instant::now() + RENEW_EVERY })
    }

    /// Renews the claim in time. A claim that is gone is made again: an operator has cancelled it, a
    /// controller that crashed has forgotten it, or another host has found it void.
    pub fn keep(
        &mut self,
        commands: &Commands,
        waiting: &HashSet<&Key>,
        slurm_user: &str,
    ) -> Result<(), Error> {
        if !waiting.contains(&self.job) {
            match Self::take(commands, &self.partition, slurm_user) {
                Ok(claim) => *self = claim,
                Err(NoClaim::Error(error)) => return Err(error),
                Err(NoClaim::Refused(message)) => {
                    return Err(trouble::unclaimed(&self.partition, &message));
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

/// Whether nobody renews a claim.
fn is_void(
    commands: &Commands,
    partition: &str,
    slurm_user: &str,
    claim: &Listed,
) -> Result<bool, Error> {
    if claim.is_fresh() {
        return Ok(false);
    }
    thread::sleep(WATCH);
    Ok(!list(commands, partition, slurm_user)?
        .iter()
        .any(|now| now.job == claim.job && now != claim))
}

fn submit(commands: &Commands, partition: &str) -> Result<Key, NoClaim> {
    let comment = format!("--comment={}", comment());
    let args = ["--parsable", "-H", "-p", partition, "-J", NAME, "-D", "/", "-o", "/dev/null"];
    let args = [&args[..], &[&comment, "--wrap", "true"]].concat();
    let printed = match commands.run("sbatch", &args, "") {
        Ok(printed) => printed,
        Err(error @ Error::Final(_)) => return Err(NoClaim::Refused(error.to_string())),
        Err(error) => return Err(error.into()),
    };
    match printed.out.trim().split(';').next() {
        Some(job) if printed.ok && !job.is_empty() => Ok(job.to_owned()),
        _ if printed.err.contains("contact slurm controller") => {
            let message = one_line(&printed.err);
            Err(trouble::unreachable("sbatch", &message).into())
        }
        _ => Err(NoClaim::Refused(one_line(&printed.err))),
    }
}

/// The claims on a partition.
pub fn list(commands: &Commands, partition: &str, slurm_user: &str) -> Result<Vec<Listed>, Error> {
    let args = ["-h", "-a", "-t", "PD", "-p", partition, "-n", NAME, "-o", "%i|%u|%k"];
    let text = commands.ask("squeue", &args)?;
    let claims = text.lines().filter_map(listed);
    let may = claims.filter(|(user, _)| may_decide(commands, user, slurm_user));
    Ok(may.map(|(_, claim)| claim).collect())
}

/// Whether jobs of this user may be claims: everybody can name a job as he likes.
fn may_decide(commands: &Commands, user: &str, slurm_user: &str) -> bool {
    if user == "root" || user == slurm_user || user == own_user() {
        return true;
    }
    // Without accounting there are no operators.
    let args = ["-nP", "show", "user", user, "format=adminlevel"];
    let level = commands.ask("sacctmgr", &args).unwrap_or_default();
    level.lines().any(|level| matches!(level.trim(), "Operator" | "Administrator"))
}

fn own_user() -> String {
    let printed = Command::new("id").arg("-un").output();
    printed.map_or_else(|_| String::new(), |o| String::from_utf8_lossy(&o.stdout).trim().to_owned())
}

fn listed(line: &str) -> Option<(String, Listed)> {
    let mut fields = line.splitn(3, '|');
    let (job, user, comment) = (fields.next()?, fields.next()?, fields.next()?);
    let word = |key: &str| comment.split_whitespace().find_map(|word| word.strip_prefix(key));
    let (host, renewed) = (word("host=")?, word("renewed=")?);
    let claim = Listed { job: job.into(), host: host.into(), renewed_s: renewed.parse().ok()? };
    Some((user.into(), claim))
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
    fn a_claim_of_anybody_does_not_count() {
        let none = Commands { bin: Some("/nowhere".into()), limit: Duration::from_secs(1) };
        assert!(may_decide(&none, "slurm", "slurm") && may_decide(&none, "root", "slurm"));
        assert!(!may_decide(&none, "ada", "slurm"));
        let ahead = Listed { job: "1".into(), host: "h".into(), renewed_s: unix_s() + 1e6 };
        assert!(!ahead.is_fresh(), "a clock that is ahead keeps nobody out for ever");
    }

    #[test]
    fn what_is_written_is_read_again() {
        let (user, own) = listed(&format!("17|slurm|{}", comment())).unwrap();
        assert_eq!((user.as_str(), own.job.as_str(), own.host.as_str()), ("slurm", "17", &*host()));
        assert!(own.is_fresh());
        assert_eq!(listed("18|ada|a user's own words"), None);
        assert_eq!(listed(""), None);
    }
}
