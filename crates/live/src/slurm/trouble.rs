//! What can be wrong with Slurm, in words that say what to do.

use hither_core::Seconds;

use crate::engine::Error;

pub fn absent(command: &str, error: &std::io::Error) -> Error {
    Error::Final(format!(
        "cannot run {command}: {error}; install Slurm's client commands (Debian: slurm-client), or name their \
         folder with --slurm-bin"
    ))
}

pub fn unreachable(command: &str, message: &str) -> Error {
    Error::Passing(format!("Slurm does not answer {command}: {message}; check `scontrol ping`"))
}

pub fn denied(command: &str, message: &str) -> Error {
    Error::Final(format!(
        "Slurm denies {command} to this user: {message}; run as SlurmUser, root or an operator"
    ))
}

pub fn version(found: &str) -> Error {
    Error::Final(format!("Slurm {found} is not supported; 20.11 or later is needed"))
}

pub fn output(command: &str, line: &str) -> Error {
    let line: String = line.chars().take(120).collect();
    Error::Passing(format!("{command} printed something unexpected: {line:?}"))
}

pub fn no_partition(name: &str, known: &str) -> Error {
    Error::Missing(format!("partition {name} does not exist; the partitions are {known}"))
}

pub fn no_gpus(partition: &str) -> Error {
    Error::Missing(format!(
        "partition {partition} has no node with GPUs of one type; check Gres in slurm.conf and gres.conf"
    ))
}

pub fn claimed(partition: &str, host: &str, silent_s: Seconds) -> Error {
    Error::Final(format!(
        "a scheduler on host {host} decides for partition {partition}, last seen {silent_s:.0} s ago; stop it \
         there; if it is gone, its claim ends within a minute"
    ))
}

pub fn unclaimed(partition: &str, message: &str) -> Error {
    Error::Passing(format!("cannot claim partition {partition} again: {message}"))
}
