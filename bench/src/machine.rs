//! What a measurement was made on, and the process's own use of it.

use std::fs;

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

/// CPU seconds that this process has used.
pub fn cpu_s() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}

/// The most memory that this process ever held, in bytes.
pub fn peak_bytes() -> Option<u64> {
    status_bytes("VmHWM:")
}

/// What it holds now.
pub fn resident_bytes() -> Option<u64> {
    status_bytes("VmRSS:")
}

fn status_bytes(name: &str) -> Option<u64> {
    let kilobytes = field("/proc/self/status", name)?;
    kilobytes.trim_end_matches(" kB").parse::<u64>().ok().map(|kb| kb * 1024)
}

pub fn facts() -> Value {
    json!({
        "cpu": field("/proc/cpuinfo", "model name"),
        "cores": std::thread::available_parallelism().map_or(1, |n| n.get()),
        "memory": field("/proc/meminfo", "MemTotal:"),
        "hither": env!("CARGO_PKG_VERSION"),
    })
}

fn field(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line[name.len()..].trim_start_matches(['\t', ' ', ':']).to_string())
}
