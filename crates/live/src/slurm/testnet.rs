//! Emulated machines on this one, for tests and benchmarks: network namespaces in racks, joined by bridges, with
//! limited NICs and uplinks. Making them needs root and iproute2; dropping the network removes them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::atomic::{AtomicU32, Ordering};

/// Names of namespaces begin with it, then the process that made them.
const PREFIX: &str = "hither";
/// Networks of this process so far.
static NETWORKS: AtomicU32 = AtomicU32::new(0);
/// All machines are in this network, which other namespaces do not see.
pub const SUBNET: &str = "10.77.0.0/16";
/// The address of the place outside all racks where launchers and controllers run.
pub const OUTSIDE: &str = "10.77.255.1";
/// A limit lets so much pass at once; below the time in which the kernel looks again it would be too slow.
const BURST_S: f64 = 0.004;
const BURST_BYTES_MIN: f64 = 256e3;

/// Speeds of the links, each way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Links {
    /// Of each machine.
    pub nic_mbit: f64,
    /// From each rack to the others, which its machines share.
    pub uplink_mbit: f64,
}

/// Machines `n0`, `n1`, … in racks, as many in each.
#[derive(Debug)]
pub struct Network {
    prefix: String,
    racks: u32,
    machines: u32,
}

/// Bytes that the kernel counted on an interface, with the headers of Ethernet, IP and TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    pub received_bytes: u64,
    pub sent_bytes: u64,
}

type Result<T> = std::result::Result<T, String>;

impl Network {
    /// Makes the machines. Where that is not permitted, the error is one line that says so.
    pub fn start(racks: u32, machines: u32, links: Links) -> Result<Self> {
        remove_abandoned();
        let number = NETWORKS.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("{PREFIX}-{}-{number}", process::id());
        let network = Self { prefix, racks, machines };
        network.make(links).map_err(|error| {
            format!(
                "network namespaces cannot be made here, which needs root and iproute2: {error}"
            )
        })?;
        Ok(network)
    }

    /// Number of machines.
    pub fn len(&self) -> u32 {
        self.racks * self.machines
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn address(&self, machine: u32) -> String {
        format!("10.77.{}.{}", machine / self.machines, machine % self.machines + 1)
    }

    fn make(&self, links: Links) -> Result<()> {
        let switches = self.namespace("switches");
        let outside = self.namespace("outside");
        for name in [&switches, &outside] {
            ip(&["netns", "add", name])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
        }
        self.add_bridge("spine")?;
        self.join(&outside, "outside", "spine", OUTSIDE)?;
        for rack in 0..self.racks {
            let (bridge, up, down) =
                (format!("rack{rack}"), format!("up{rack}"), format!("down{rack}"));
            self.add_bridge(&bridge)?;
            ip(&["-n", &switches, "link", "add", &up, "type", "veth", "peer", "name", &down])?;
            ip(&["-n", &switches, "link", "set", &up, "master", &bridge, "up"])?;
            ip(&["-n", &switches, "link", "set", &down, "master", "spine", "up"])?;
            limit(&switches, &up, links.uplink_mbit)?;
            limit(&switches, &down, links.uplink_mbit)?;
            for machine in rack * self.machines..(rack + 1) * self.machines {
                let (name, port) = (self.machine(machine), format!("port{machine}"));
                ip(&["netns", "add", &name])?;
                ip(&["-n", &name, "link", "set", "lo", "up"])?;
                self.join(&name, &port, &bridge, &self.address(machine))?;
                limit(&name, "eth0", links.nic_mbit)?;
                limit(&switches, &port, links.nic_mbit)?;
            }
        }
        Ok(())
    }

    fn add_bridge(&self, name: &str) -> Result<()> {
        let switches = self.namespace("switches");
        ip(&["-n", &switches, "link", "add", "name", name, "type", "bridge"])?;
        ip(&["-n", &switches, "link", "set", name, "up"])
    }

    /// A cable from `eth0` of a namespace to a port of a bridge.
    fn join(&self, namespace: &str, port: &str, bridge: &str, address: &str) -> Result<()> {
        let switches = self.namespace("switches");
        ip(&[
            "link", "add", "eth0", "netns", namespace, "type", "veth", "peer", "name", port,
            "netns", &switches,
        ])?;
        ip(&["-n", &switches, "link", "set", port, "master", bridge, "up"])?;
        ip(&["-n", namespace, "addr", "add", &format!("{address}/16"), "dev", "eth0"])?;
        ip(&["-n", namespace, "link", "set", "eth0", "up"])
    }

    fn namespace(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    fn machine(&self, machine: u32) -> String {
        self.namespace(&format!("n{machine}"))
    }

    /// A command outside all racks, from where all machines can be reached.
    pub fn outside(&self, program: impl AsRef<Path>) -> Command {
        enter(&self.namespace("outside"), program.as_ref())
    }

    /// A command on a machine. It sees the machine's own name and shared memory.
    pub fn on(&self, machine: u32, program: impl AsRef<Path>) -> Command {
        let mut command = enter(&self.machine(machine), Path::new("unshare"));
        command.args(["--uts", "--mount", "bash", "-c", &own(machine), "bash"]);
        command.arg(program.as_ref());
        command
    }

    /// `mpirun` with so many ranks on each of some machines, in this order. Everything that it needs to start
    /// ranks there is written to `folder`.
    pub fn mpirun(&self, folder: &Path, ranks: &[(u32, u32)]) -> Result<Command> {
        let agent = folder.join(format!("{}-agent.sh", self.prefix));
        self.write_agent(&agent).map_err(|error| format!("{}: {error}", agent.display()))?;
        let host = |(machine, count): &(u32, u32)| format!("{}:{count}", self.address(*machine));
        let hosts: Vec<String> = ranks.iter().map(host).collect();
        let count: u32 = ranks.iter().map(|(_, count)| count).sum();
        let mut command = self.outside("mpirun");
        command
            .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
            .args(["--bind-to", "none", "--map-by", "slot", "--mca", "plm_rsh_agent"])
            .arg(agent)
            .args(["--mca", "btl", "self,vader,tcp", "--mca", "btl_tcp_if_include", SUBNET])
            .args(["--mca", "oob_tcp_if_include", SUBNET, "--host", &hosts.join(",")])
            // All machines share the cores of this one: MPI must not spin while others have work.
            .args(["--mca", "mpi_yield_when_idle", "1", "-n", &count.to_string()]);
        Ok(command)
    }

    /// A script that starts a command line on the machine with an address, as ssh does.
    fn write_agent(&self, path: &Path) -> std::io::Result<()> {
        use std::os::unix::fs::PermissionsExt as _;
        let case = |machine: u32| {
            let (address, name) = (self.address(machine), self.machine(machine));
            format!(
                "{address}) exec nsenter --net=/run/netns/{name} unshare --uts --mount bash -c '{}' \
                 bash bash -c \"$words\" ;;\n",
                own(machine)
            )
        };
        let cases: String = (0..self.len()).map(case).collect();
        let script = format!(
            "#!/bin/bash\nhost=$1\nshift\nwords=\"$*\"\ncase $host in\n{cases}esac\n\
             echo \"no machine has the address $host\" >&2\nexit 1\n"
        );
        fs::write(path, script)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))
    }

    /// What has gone through a machine's NIC so far.
    pub fn machine_bytes(&self, machine: u32) -> Result<Counted> {
        counted(&self.machine(machine), "eth0")
    }

    /// What has gone through a rack's uplink so far: received from the other racks, and sent to them.
    pub fn uplink_bytes(&self, rack: u32) -> Result<Counted> {
        counted(&self.namespace("switches"), &format!("up{rack}"))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        remove(|name| name.starts_with(&format!("{}-", self.prefix)));
    }
}

/// What a machine has of its own beside its network, as a line of bash that runs a command: its name, and its
/// shared memory, by which MPI recognises ranks of the same machine.
fn own(machine: u32) -> String {
    format!("hostname n{machine}; mount -t tmpfs tmpfs /dev/shm; exec \"$@\"")
}

/// Unlike `ip netns exec` this leaves /sys alone, without which slurmd does not start.
fn enter(namespace: &str, program: &Path) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/run/netns/{namespace}")).arg(program);
    command
}

fn ip(args: &[&str]) -> Result<()> {
    said("ip", args).map(drop)
}

/// Limits what leaves through an interface.
fn limit(namespace: &str, interface: &str, mbit: f64) -> Result<()> {
    let burst = (mbit * 1e6 / 8.0 * BURST_S).max(BURST_BYTES_MIN);
    let (rate, burst) = (format!("{}kbit", (mbit * 1e3).round()), format!("{}b", burst.round()));
    let queue = ["rate", &rate, "burst", &burst, "latency", "100ms"];
    let device = ["-n", namespace, "qdisc", "add", "dev", interface, "root", "tbf"];
    said("tc", &[&device[..], &queue].concat()).map(drop)
}

fn counted(namespace: &str, interface: &str) -> Result<Counted> {
    let text = said("ip", &["-n", namespace, "-s", "-j", "link", "show", "dev", interface])?;
    let bad = || format!("ip: no counts of {interface}");
    let link: serde_json::Value = serde_json::from_str(&text).map_err(|_| bad())?;
    let bytes = |way: &str| link[0]["stats64"][way]["bytes"].as_u64().ok_or_else(bad);
    Ok(Counted { received_bytes: bytes("rx")?, sent_bytes: bytes("tx")? })
}

/// What a command of iproute2 prints.
fn said(program: &str, args: &[&str]) -> Result<String> {
    let output =
        Command::new(program).args(args).output().map_err(|e| format!("{program}: {e}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            let line = String::from_utf8_lossy(&output.stderr).trim().replace('\n', " ");
            Err(format!("{program} {}: {line}", args.join(" ")))
        }
    }
}

/// Namespaces of processes that were killed before they could remove them.
fn remove_abandoned() {
    remove(|name| {
        let maker = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').nth(1));
        let maker = maker.and_then(|pid| pid.parse::<u32>().ok());
        maker.is_some_and(|pid| !PathBuf::from(format!("/proc/{pid}")).exists())
    });
}

fn remove(is_meant: impl Fn(&str) -> bool) {
    for entry in fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if is_meant(&name) {
            let _ = ip(&["netns", "del", &name]);
        }
    }
}
