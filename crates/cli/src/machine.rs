//! Facts about the machine that decide how fast memory is: processor, caches, pages.

use std::fs;
use std::path::Path;

use serde::Serialize;

/// Facts about the machine; `None` where the system does not report one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Machine {
    pub cpu: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Second-level cache of one core.
    pub l2_bytes: Option<usize>,
    /// Third-level cache of the first core, shared with the cores of its group.
    pub l3_bytes: Option<usize>,
    pub memory_bytes: Option<u64>,
    pub available_bytes: Option<u64>,
    /// `always`, `madvise` or `never`.
    pub transparent_huge_pages: Option<String>,
    pub huge_page_bytes: Option<u64>,
    pub huge_pages_total: Option<u64>,
    pub huge_pages_free: Option<u64>,
}

const CACHES: &str = "/sys/devices/system/cpu/cpu0/cache";
const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

impl Machine {
    pub fn read() -> Self {
        let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let kibibytes = |key: &str| field(&memory, key).map(|kib| kib * 1024);
        let caches = caches(Path::new(CACHES));
        let of_level = |level: usize| {
            caches.iter().find(|(found, _)| *found == level).map(|(_, bytes)| *bytes)
        };
        Self {
            cpu: model(&cpu).unwrap_or("unknown").into(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            l2_bytes: of_level(2),
            l3_bytes: of_level(3),
            memory_bytes: hither_data::memory::total_bytes(),
            available_bytes: hither_data::memory::available_bytes(),
            transparent_huge_pages: fs::read_to_string(HUGE_PAGES).ok().and_then(|t| chosen(&t)),
            huge_page_bytes: kibibytes("Hugepagesize"),
            huge_pages_total: field(&memory, "HugePages_Total"),
            huge_pages_free: field(&memory, "HugePages_Free"),
        }
    }
}

#[cfg(feature = "serve")]
mod plan {
    use hither_dlrm::plan::{Processor, cache};

    use super::Machine;

    /// The size of the second-level cache where the system does not tell.
    const L2_BYTES: usize = 1 << 20;
    /// The size of the last-level cache where the system does not tell.
    const L3_BYTES: usize = 32 << 20;

    impl Machine {
        /// The bytes of the second-level cache, and those of the last-level cache that one core really
        /// keeps: a virtual machine is told of a whole cache that it shares with others. Takes about a
        /// second.
        pub fn measured_caches(&self) -> (usize, usize) {
            let l2_bytes = self.l2_bytes.unwrap_or(L2_BYTES);
            let nominal = self.l3_bytes.or(self.l2_bytes).unwrap_or(L3_BYTES);
            (l2_bytes, cache::kept_bytes(l2_bytes, nominal))
        }

        /// What a plan's choices depend on.
        pub fn processor(&self) -> Processor {
            let Self { cpu, l2_bytes, l3_bytes, .. } = self.clone();
            Processor { cpu, l2_bytes, l3_bytes }
        }
    }
}

fn model(cpuinfo: &str) -> Option<&str> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, name)| name.trim())
}

fn field(meminfo: &str, key: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| line.split(':').next() == Some(key))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Picks the word in brackets: `always [madvise] never`.
fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word.to_owned())
}

/// Level and size of each data cache.
fn caches(dir: &Path) -> Vec<(usize, usize)> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let read = |path: &Path, name: &str| fs::read_to_string(path.join(name)).ok();
    entries
        .flatten()
        .filter_map(|entry| {
            let path = entry.path();
            let kind = read(&path, "type")?;
            let level = read(&path, "level")?.trim().parse().ok()?;
            let bytes = size(read(&path, "size")?.trim())?;
            (kind.trim() != "Instruction").then_some((level, bytes))
        })
        .collect()
}

/// `1024K` or `32M`
fn size(text: &str) -> Option<usize> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match &text[digits.len()..] {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return None,
    };
    digits.parse::<usize>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_writes_is_understood() {
        assert_eq!(size("1024K"), Some(1 << 20));
        assert_eq!(size("32M"), Some(32 << 20));
        assert_eq!(["", "K", "12X", "99999999999999999999G"].map(size), [None; 4]);
        assert_eq!(chosen("always [madvise] never\n").as_deref(), Some("madvise"));
        assert_eq!(chosen("always"), None);
        assert_eq!(field("MemTotal:  24 kB\nMemTotalX: 9\n", "MemTotal"), Some(24));
        assert_eq!(model("processor : 0\nmodel name\t: AMD EPYC\n"), Some("AMD EPYC"));
    }

    #[test]
    fn a_machine_is_told_whatever_is_missing() {
        let machine = Machine::read();
        assert!(machine.cores > 0);
        assert!(caches(Path::new("no such directory")).is_empty());
    }
}
