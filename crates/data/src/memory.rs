//! How much memory this process may still take: the machine's, or that of the container it runs in.

use std::fs;
use std::path::{Path, PathBuf};

/// Memory that the system could give without swapping, and that the process's control groups leave it;
/// `None` where the system does not tell.
pub fn available_bytes() -> Option<u64> {
    let machine = meminfo("MemAvailable:");
    let group = groups().into_iter().filter_map(|group| group.left_bytes()).min();
    machine.into_iter().chain(group).min()
}

/// The machine's memory, or what the process's control groups allow of it.
pub fn total_bytes() -> Option<u64> {
    let machine = meminfo("MemTotal:");
    let group = groups().into_iter().filter_map(|group| group.limit_bytes()).min();
    machine.into_iter().chain(group).min()
}

fn meminfo(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kibibytes << 10)
}

/// A control group for memory, of version 1 or 2.
#[derive(Debug, PartialEq, Eq)]
struct Group {
    dir: PathBuf,
    limit: &'static str,
    used: &'static str,
    /// The line of `memory.stat` for pages of files that the system would drop first.
    dropped: &'static str,
}

impl Group {
    fn new(dir: PathBuf, is_second: bool) -> Self {
        match is_second {
            true => {
                Self { dir, limit: "memory.max", used: "memory.current", dropped: "inactive_file " }
            }
            false => Self {
                dir,
                limit: "memory.limit_in_bytes",
                used: "memory.usage_in_bytes",
                dropped: "total_inactive_file ",
            },
        }
    }

    /// `None` for no limit: version 2 says `max`, version 1 a number beyond all memory.
    fn limit_bytes(&self) -> Option<u64> {
        let text = fs::read_to_string(self.dir.join(self.limit)).ok()?;
        text.trim().parse().ok().filter(|bytes| *bytes < 1 << 60)
    }

    fn left_bytes(&self) -> Option<u64> {
        let limit = self.limit_bytes()?;
        let used = fs::read_to_string(self.dir.join(self.used)).ok()?;
        let used: u64 = used.trim().parse().ok()?;
        let stat = fs::read_to_string(self.dir.join("memory.stat")).unwrap_or_default();
        let dropped = stat.lines().find_map(|line| line.strip_prefix(self.dropped));
        let dropped: u64 = dropped.and_then(|bytes| bytes.trim().parse().ok()).unwrap_or(0);
        Some(limit.saturating_sub(used.saturating_sub(dropped)))
    }
}

fn groups() -> Vec<Group> {
    let text = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    groups_of(&text, Path::new("/sys/fs/cgroup"))
}

/// The groups of a process, from its own up to the root: each of them may have a limit. A container may see
/// its own group as the root.
fn groups_of(text: &str, mounted: &Path) -> Vec<Group> {
    let mut groups = Vec::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let is_second = controllers.is_empty();
        let root = match is_second {
            true => mounted.to_owned(),
            false if controllers.split(',').any(|one| one == "memory") => mounted.join("memory"),
            false => continue,
        };
        let mut dir = Some(root.join(path.trim_start_matches('/')));
        while let Some(here) = dir.filter(|dir| dir.starts_with(&root)) {
            dir = here.parent().map(Path::to_owned);
            groups.push(Group::new(here, is_second));
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(dir).expect("a folder");
        for (name, text) in files {
            fs::write(dir.join(name), text).expect("a file");
        }
    }

    #[test]
    fn the_tightest_group_counts_and_pages_of_files_can_be_dropped() {
        let root = tempfile::tempdir().expect("a folder");
        let root = root.path();
        write(&root.join("pod"), &[("memory.max", "1000\n"), ("memory.current", "900\n")]);
        write(
            &root.join("pod/app"),
            &[
                ("memory.max", "800\n"),
                ("memory.current", "500\n"),
                ("memory.stat", "anon 300\ninactive_file 150\n"),
            ],
        );
        write(&root.join("free"), &[("memory.max", "max\n"), ("memory.current", "5\n")]);
        let left = |text| groups_of(text, root).iter().filter_map(Group::left_bytes).min();
        assert_eq!(left("0::/pod/app\n"), Some(100), "the pod has less left");
        assert_eq!(groups_of("0::/pod/app\n", root)[0].left_bytes(), Some(450));
        assert_eq!(left("0::/free\n"), None);
        assert_eq!(left("0::/no/such/group\n"), None);
        assert_eq!(left(""), None);
    }

    #[test]
    fn groups_of_version_1_are_read_too() {
        let root = tempfile::tempdir().expect("a folder");
        write(
            &root.path().join("memory/app"),
            &[
                ("memory.limit_in_bytes", "700\n"),
                ("memory.usage_in_bytes", "600\n"),
                ("memory.stat", "total_inactive_file 50\n"),
            ],
        );
        write(
            &root.path().join("memory"),
            &[("memory.limit_in_bytes", "9223372036854771712\n"), ("memory.usage_in_bytes", "9\n")],
        );
        let groups = groups_of("5:cpu:/app\n4:memory:/app\n", root.path());
        let left: Vec<_> = groups.iter().map(Group::left_bytes).collect();
        assert_eq!(left, [Some(150), None]);
    }
}
