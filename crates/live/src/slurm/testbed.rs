//! A private Slurm cluster on this machine, for tests and benchmarks: its own folder, ports, key and
//! daemons, several nodes with emulated GPUs, racks. Nothing of it needs root, unless its nodes are the machines
//! of an emulated [`Network`]. Nothing is left when it is dropped.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::testnet::{Network, OUTSIDE};

/// Slurm takes any character devices for GPUs; all nodes may name the same ones.
const DEVICES: [&str; 8] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/ptmx",
    "/dev/tty",
    "/dev/kmsg",
];
const DAEMONS: [&str; 4] = ["munged", "slurmctld", "slurmd", "scontrol"];
const PORTS: std::ops::Range<u16> = 21_000..29_000;
const UP_LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub racks: u32,
    /// Per rack.
    pub machines: u32,
    /// Per machine, at most 8.
    pub gpus: u32,
}

#[derive(Debug)]
pub struct Testbed {
    pub dir: PathBuf,
    pub shape: Shape,
    /// The machines that the nodes are; `None`: all are this machine.
    pub network: Option<Network>,
    port: u16,
    /// Its database, if it keeps accounts.
    database: Option<Child>,
}

type Result<T> = std::result::Result<T, String>;

impl Testbed {
    /// Starts a cluster in an empty folder and waits until all its nodes are idle. `extra` is
    /// appended to slurm.conf.
    pub fn start(dir: &Path, shape: Shape, extra: &str) -> Result<Self> {
        Self::start_on(None, dir, shape, extra)
    }

    /// As [`Testbed::start`], with slurmdbd on a MariaDB of its own, so that QOS and accounts have limits. The user
    /// who runs this is in account `lab`.
    pub fn start_with_accounts(dir: &Path, shape: Shape, extra: &str) -> Result<Self> {
        let mut bed = Self::written(None, dir, shape, extra)?;
        bed.start_munge()?;
        bed.start_accounts().map_err(|error| format!("accounts: {error}"))?;
        bed.run_up()?;
        Ok(bed)
    }

    /// As [`Testbed::start`], on a network with as many racks and machines. The controller is outside of it.
    pub fn start_on(
        network: Option<Network>,
        dir: &Path,
        shape: Shape,
        extra: &str,
    ) -> Result<Self> {
        let bed = Self::written(network, dir, shape, extra)?;
        bed.start_munge()?;
        bed.run_up()?;
        Ok(bed)
    }

    fn written(network: Option<Network>, dir: &Path, shape: Shape, extra: &str) -> Result<Self> {
        if let Some(missing) = DAEMONS.iter().find(|name| program(name).is_none()) {
            return Err(format!("{missing} is missing: run ./test.sh, which installs Slurm"));
        }
        let port = free_ports(shape.racks * shape.machines + 3)?;
        let bed = Self { dir: dir.to_path_buf(), shape, network, port, database: None };
        bed.write_files(extra).map_err(|error| format!("{}: {error}", dir.display()))?;
        Ok(bed)
    }

    fn run_up(&self) -> Result<()> {
        self.start_controller()?;
        (0..self.nodes()).try_for_each(|node| self.start_node(node))?;
        self.await_nodes()
    }

    fn start_accounts(&mut self) -> Result<()> {
        let dir = self.dir.display().to_string();
        let user = said("id", &["-un"])?;
        let (dbd_port, db_port) =
            (self.port + self.nodes() as u16 + 1, self.port + self.nodes() as u16 + 2);
        let (data, socket) = (format!("--datadir={dir}/db"), format!("--socket={dir}/run/db.sock"));
        let by = format!("--user={user}");
        let install = ["--no-defaults", &data, &by, "--auth-root-authentication-method=normal"];
        said("mariadb-install-db", &[&install[..], &["--skip-test-db"]].concat())?;
        let server = program("mariadbd").ok_or("mariadbd is missing: run ./test.sh")?;
        let log = fs::File::create(self.dir.join("log/db.log")).map_err(|e| e.to_string())?;
        let child = Command::new(server)
            .args(["--no-defaults", &data, &socket, &by, "--bind-address=127.0.0.1"])
            .args([
                &format!("--port={db_port}"),
                "--skip-name-resolve",
                "--innodb-log-file-size=16M",
            ])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.database = Some(child.map_err(|error| format!("mariadbd: {error}"))?);
        let grant = "create user slurm@'127.0.0.1' identified by 'x'; grant all on *.* to slurm@'127.0.0.1'";
        eventually("the database", || {
            said("mariadb", &["--no-defaults", &socket, "-u", "root", "-e", grant])
        })?;
        let munge = format!("{dir}/run/munge.sock");
        let conf = format!(
            "AuthType=auth/munge\nAuthInfo=socket={munge}\nDbdHost=localhost\nDbdAddr=127.0.0.1\n\
             DbdPort={dbd_port}\nSlurmUser={user}\nLogFile={dir}/log/slurmdbd.log\n\
             PidFile={dir}/run/slurmdbd.pid\nStorageType=accounting_storage/mysql\n\
             StorageHost=127.0.0.1\nStoragePort={db_port}\nStorageUser=slurm\nStoragePass=x\n"
        );
        let etc = self.dir.join("etc");
        let path = etc.join("slurmdbd.conf");
        let written = fs::write(&path, conf).and_then(|()| set_mode(&path, 0o600));
        written.map_err(|error| format!("{}: {error}", path.display()))?;
        let slurm_conf = fs::read_to_string(self.conf()).map_err(|e| e.to_string())?;
        let slurm_conf = slurm_conf.replace(
            "AccountingStorageType=accounting_storage/none\n",
            &format!(
                "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=localhost\n\
                 AccountingStoragePort={dbd_port}\nAccountingStoragePass={munge}\n\
                 AccountingStorageEnforce=limits,qos\nAccountingStorageTRES=gres/gpu\n"
            ),
        );
        fs::write(self.conf(), slurm_conf).map_err(|e| e.to_string())?;
        self.daemon("slurmdbd", &[])?;
        eventually("slurmdbd", || self.ask("sacctmgr", &["-i", "add", "cluster", "test"]))?;
        self.ask("sacctmgr", &["-i", "add", "account", "lab", "Description=x", "Organization=x"])?;
        self.ask("sacctmgr", &["-i", "add", "user", &user, "Account=lab", "DefaultAccount=lab"])?;
        Ok(())
    }

    pub fn nodes(&self) -> u32 {
        self.shape.racks * self.shape.machines
    }

    pub fn conf(&self) -> PathBuf {
        self.dir.join("etc/slurm.conf")
    }

    /// Any command, with this cluster as its Slurm.
    pub fn command(&self, name: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = match &self.network {
            Some(network) => network.outside(name.as_ref()),
            None => Command::new(name),
        };
        command.env("SLURM_CONF", self.conf()).current_dir(&self.dir);
        command
    }

    /// What a command of Slurm prints.
    pub fn ask(&self, name: &str, args: &[&str]) -> Result<String> {
        let output = self.command(name).args(args).output().map_err(|e| format!("{name}: {e}"))?;
        printed(name, output)
    }

    /// Submits a script and returns the job's id.
    pub fn submit(&self, args: &[&str], script: &Path, words: &[&str]) -> Result<String> {
        let script = script.to_string_lossy();
        let all = [&["--parsable", "-o", "/dev/null"], args, &[&script], words].concat();
        Ok(self.ask("sbatch", &all)?.trim().to_owned())
    }

    fn write_files(&self, extra: &str) -> std::io::Result<()> {
        let Shape { racks, machines, gpus } = self.shape;
        for folder in ["etc", "state", "log", "spool", "run", "tmp"] {
            fs::create_dir_all(self.dir.join(folder))?;
        }
        let etc = self.dir.join("etc");
        let key: Vec<u8> =
            (0..1024u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        fs::write(etc.join("munge.key"), key)?;
        set_mode(&etc.join("munge.key"), 0o600)?;
        set_mode(&self.dir, 0o755)?;
        set_mode(&self.dir.join("run"), 0o755)?;
        // Slurm 24 and later have a plugin for machines without control groups.
        let version = Command::new("scontrol").arg("--version").output()?;
        let version = super::read::version(&String::from_utf8_lossy(&version.stdout));
        let plugin = if version >= Some((24, 0)) { "disabled" } else { "cgroup/v1" };
        fs::write(etc.join("cgroup.conf"), format!("CgroupPlugin={plugin}\n"))?;
        let files = DEVICES[..gpus as usize].join(",");
        let (mut conf, mut gres, mut topology) = (self.slurm_conf(), String::new(), String::new());
        for rack in 0..racks {
            for node in rack * machines..(rack + 1) * machines {
                let port = u32::from(self.port) + 1 + node;
                let address = self.network.as_ref().map(|network| network.address(node));
                let address = address.as_deref().unwrap_or("127.0.0.1");
                conf += &format!(
                    "NodeName=n{node} NodeHostname=n{node} NodeAddr={address} Port={port} CPUs=64 \
                     RealMemory=64000 Gres=gpu:a100:{gpus}\n"
                );
                gres += &format!("NodeName=n{node} Name=gpu Type=a100 File={files}\n");
                fs::create_dir_all(self.dir.join(format!("spool/n{node}")))?;
                fs::create_dir_all(self.dir.join(format!("tmp/n{node}")))?;
            }
            let (first, last) = (rack * machines, (rack + 1) * machines - 1);
            topology += &format!("SwitchName=rack{rack} Nodes=n[{first}-{last}]\n");
        }
        topology += &format!("SwitchName=spine Switches=rack[0-{}]\n", racks - 1);
        conf += &format!(
            "PartitionName=gpu Nodes=n[0-{}] Default=YES MaxTime=INFINITE State=UP\n{extra}\n",
            self.nodes() - 1
        );
        fs::write(etc.join("slurm.conf"), conf)?;
        fs::write(etc.join("gres.conf"), gres)?;
        fs::write(etc.join("topology.conf"), topology)
    }

    fn slurm_conf(&self) -> String {
        let said = |program: &str, flag: &str| said(program, &[flag]).unwrap_or_default();
        let (user, host) = (said("id", "-un"), said("hostname", "-s"));
        let (dir, port) = (self.dir.display(), self.port);
        let (address, only_loopback) = match self.network {
            Some(_) => (OUTSIDE, ""),
            None => ("127.0.0.1", "CommunicationParameters=NoCtldInAddrAny,NoInAddrAny\n"),
        };
        format!(
            "ClusterName=test
SlurmctldHost={host}({address})
SlurmctldPort={port}
{only_loopback}\
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={dir}/run/munge.sock
CredType=cred/munge
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool/%n
TmpFS={dir}/tmp/%n
SlurmctldPidFile={dir}/run/slurmctld.pid
SlurmdPidFile={dir}/run/slurmd-%n.pid
SlurmctldLogFile={dir}/log/slurmctld.log
SlurmdLogFile={dir}/log/slurmd-%n.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={dir}/log/jobcomp
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=5,bf_interval=5
PriorityType=priority/basic
TopologyPlugin=topology/tree
GresTypes=gpu
JobRequeue=1
KillWait=3
MaxJobCount=100000
SlurmdTimeout=60
"
        )
    }

    fn daemon(&self, name: &str, args: &[&str]) -> Result<()> {
        let path = program(name).ok_or_else(|| format!("{name} is missing"))?;
        run_daemon(name, self.command(path).args(args))
    }

    fn start_munge(&self) -> Result<()> {
        let dir = self.dir.display();
        let args = [
            "--force".to_owned(),
            format!("--key-file={dir}/etc/munge.key"),
            format!("--socket={dir}/run/munge.sock"),
            format!("--pid-file={dir}/run/munged.pid"),
            format!("--log-file={dir}/log/munged.log"),
            format!("--seed-file={dir}/run/munge.seed"),
        ];
        self.daemon("munged", &args.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Starts the controller; it recovers what an earlier one saved.
    pub fn start_controller(&self) -> Result<()> {
        self.daemon("slurmctld", &["-f", &self.conf().to_string_lossy()])
    }

    pub fn start_node(&self, node: u32) -> Result<()> {
        let (conf, name) = (self.conf(), format!("n{node}"));
        let args = ["-f", &conf.to_string_lossy(), "-N", &name];
        match &self.network {
            None => self.daemon("slurmd", &args),
            Some(network) => {
                let path = program("slurmd").ok_or("slurmd is missing")?;
                let mut command = network.on(node, path);
                run_daemon("slurmd", command.env("SLURM_CONF", &conf).args(args))
            }
        }
    }

    /// Ends the controller in an orderly way, as an upgrade does: it saves its state.
    pub fn stop_controller(&self) {
        self.end("slurmctld", "-TERM");
    }

    /// Waits until the controller has just written its state. It does so every few seconds; what it
    /// hears in between is lost if it is killed, whoever decides (docs/live.md).
    pub fn await_saved(&self) {
        let file = self.dir.join("state/job_state");
        let saved = || fs::metadata(&file).and_then(|meta| meta.modified()).ok();
        let before = saved();
        let until = Instant::now() + Duration::from_secs(10);
        while saved() == before && Instant::now() < until {
            thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn kill_controller(&self) {
        self.end("slurmctld", "-KILL");
    }

    pub fn kill_node(&self, node: u32) {
        self.end(&format!("slurmd-n{node}"), "-KILL");
    }

    /// Ends one of our daemons by the id in its file, and waits until it is gone.
    fn end(&self, daemon: &str, how: &str) {
        let file = self.dir.join(format!("run/{daemon}.pid"));
        let Some(pid) = fs::read_to_string(&file).ok().and_then(|t| t.trim().parse::<u32>().ok())
        else {
            return;
        };
        let signal = |name: &str| Command::new("kill").args([name, &pid.to_string()]).output();
        let lives = || {
            // A pid that another program has by now is not ours to end.
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            let is_zombie = fs::read_to_string(format!("/proc/{pid}/stat"))
                .is_ok_and(|stat| stat.contains(") Z "));
            daemon.starts_with(name.trim()) && !name.trim().is_empty() && !is_zombie
        };
        if lives() {
            let _ = signal(how);
        }
        let until = Instant::now() + Duration::from_secs(10);
        while lives() && Instant::now() < until {
            thread::sleep(Duration::from_millis(10));
        }
        let _ = fs::remove_file(file);
    }

    /// Ends all that was started with this cluster's configuration: jobs and their steps outlive the daemons.
    fn kill_jobs(&self) {
        let mark = format!("SLURM_CONF={}", self.conf().display());
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let environ = fs::read(entry.path().join("environ")).unwrap_or_default();
            if environ.split(|byte| *byte == 0).any(|var| var == mark.as_bytes()) {
                let _ = Command::new("kill").arg("-KILL").arg(entry.file_name()).output();
            }
        }
    }

    /// Waits until all nodes can take jobs.
    pub fn await_nodes(&self) -> Result<()> {
        let until = Instant::now() + UP_LIMIT;
        let mut said = String::new();
        while Instant::now() < until {
            match self.ask("sinfo", &["-h", "-N", "-p", "gpu", "-o", "%T"]) {
                Ok(states) => {
                    let up = |s: &&str| matches!(*s, "idle" | "mixed" | "allocated" | "completing");
                    let count = states.split_whitespace().filter(up).count();
                    if count == self.nodes() as usize {
                        return Ok(());
                    }
                    said = states;
                }
                Err(error) => said = error,
            }
            thread::sleep(Duration::from_millis(50));
        }
        Err(format!("the cluster did not come up: {}", said.replace('\n', " ")))
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        self.kill_controller();
        (0..self.nodes()).for_each(|node| self.kill_node(node));
        self.end("slurmdbd", "-KILL");
        if let Some(database) = &mut self.database {
            let _ = database.kill();
            let _ = database.wait();
        }
        self.end("munged", "-KILL");
        self.kill_jobs();
    }
}

/// What a command prints, without any cluster.
fn said(name: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(name).args(args).output().map_err(|e| format!("{name}: {e}"))?;
    printed(name, output).map(|text| text.trim().to_owned())
}

/// Tries again until it works, for as long as a daemon may take to come up.
fn eventually<T>(what: &str, mut work: impl FnMut() -> Result<T>) -> Result<T> {
    let until = Instant::now() + UP_LIMIT;
    loop {
        match work() {
            Ok(done) => return Ok(done),
            Err(error) if Instant::now() > until => return Err(format!("{what}: {error}")),
            Err(_) => thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// Starts a daemon, which goes on in the background.
fn run_daemon(name: &str, command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output();
    printed(name, output.map_err(|error| format!("{name}: {error}"))?).map(drop)
}

fn printed(name: &str, output: Output) -> Result<String> {
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// Daemons are not always on a user's path.
fn program(name: &str) -> Option<PathBuf> {
    let folders = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"];
    folders.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.is_file())
}

/// The first of so many ports in a row that nobody uses. Processes begin to look at different places.
fn free_ports(count: u32) -> Result<u16> {
    let span = u32::from(PORTS.end - PORTS.start) - count;
    let mut at = std::process::id().wrapping_mul(97) % span;
    for _ in 0..200 {
        let base = PORTS.start + at as u16;
        let all: Vec<_> = (0..count as u16)
            .map_while(|n| TcpListener::bind(("127.0.0.1", base + n)).ok())
            .collect();
        if all.len() == count as usize {
            return Ok(base);
        }
        at = (at + count + 13) % span;
    }
    Err("no free ports for a test cluster".into())
}

fn set_mode(path: &Path, mode: u32) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}
