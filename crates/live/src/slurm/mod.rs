//! Slurm as an engine, through its own commands: squeue, sinfo, scontrol, scancel, and sbatch for
//! claims. Nothing is linked, and nothing runs on the nodes.
//!
//! Each look costs one squeue. Records of jobs are fetched when a job is new, has started, or may
//! have reported progress, all with one scontrol.

pub mod claim;
pub mod command;
pub mod read;
pub mod testbed;
pub mod testnet;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hither_core::Seconds;
use hither_core::topology::Topology;
use hither_sched::topo;

use crate::engine::{Complaint, Engine, Error, Key, Order, Seen, SeenJob, SeenNode, Stands, Wants};
use claim::{Claim, NoClaim};
use command::{Commands, is_denied, one_line};
use read::{Record, Row};

/// The oldest release whose commands print what is read here.
const VERSION_MIN: (u32, u32) = (20, 11);
/// How often nodes are looked at.
const NODES_EVERY: Duration = Duration::from_secs(2);
/// How often records are read again for progress, fulfilled dependencies and begin times.
const RECORDS_EVERY: Duration = Duration::from_secs(5);
/// Jobs whose records are read with one scontrol.
const RECORDS_AT_ONCE: usize = 500;

#[derive(Debug, Clone)]
pub struct Config {
    /// The partitions whose held jobs are managed.
    pub partitions: Vec<String>,
    /// The folder of Slurm's commands; `None`: they are on the path.
    pub bin: Option<PathBuf>,
    /// How long a command may take.
    pub limit: Duration,
}

pub struct Slurm {
    config: Config,
    commands: Commands,
    /// What is known of each job beyond its row.
    known: HashMap<Key, SeenJob>,
    nodes: BTreeMap<String, SeenNode>,
    nodes_due: Instant,
    records_due: Instant,
    claims: Vec<Claim>,
}

impl Slurm {
    /// Makes sure that Slurm is there, recent enough, and has the partitions.
    pub fn connect(config: Config) -> Result<Self, Error> {
        let commands = Commands { bin: config.bin.clone(), limit: config.limit };
        let version = commands.ask("scontrol", &["--version"])?;
        if read::version(&version).is_none_or(|found| found < VERSION_MIN) {
            return Err(Error::Version { found: one_line(&version) });
        }
        let now = Instant::now();
        let mut slurm = Self {
            config,
            commands,
            known: HashMap::new(),
            nodes: BTreeMap::new(),
            nodes_due: now,
            records_due: now + RECORDS_EVERY,
            claims: Vec::new(),
        };
        slurm.read_nodes()?;
        Ok(slurm)
    }

    /// What tells this cluster from all others: its name and its controller.
    pub fn identity(&self) -> Result<String, Error> {
        let text = self.commands.ask("scontrol", &["show", "config"])?;
        let field = |key: &str| {
            let line = text.lines().find(|line| line.starts_with(key))?;
            line.split_once('=').map(|(_, value)| value.trim())
        };
        let fields = ["ClusterName", "SlurmctldHost", "SlurmctldPort"].map(field);
        Ok(fields.map(Option::unwrap_or_default).join(" "))
    }

    /// Claims the partitions: no scheduler of another host decides for them while this one lives. If
    /// Slurm takes no claim from this user, the words say why.
    pub fn claim(&mut self) -> Result<Option<String>, Error> {
        for partition in &self.config.partitions {
            match Claim::take(&self.commands, partition) {
                Ok(claim) => self.claims.push(claim),
                Err(NoClaim::Refused(message)) => return Ok(Some(message)),
                Err(NoClaim::Error(error)) => return Err(error),
            }
        }
        Ok(None)
    }

    fn partitions(&self) -> String {
        self.config.partitions.join(",")
    }

    fn read_nodes(&mut self) -> Result<(), Error> {
        let partitions = self.partitions();
        let text =
            self.commands.ask("sinfo", &["-h", "-N", "-p", &partitions, "-o", read::NODE])?;
        if text.trim().is_empty() {
            let known = self.commands.ask("sinfo", &["-h", "-a", "-o", "%R"])?;
            let known = known.split_whitespace().collect::<Vec<_>>().join(", ");
            return Err(Error::NoPartition { name: partitions, known });
        }
        self.nodes = read::nodes(&text)?.into_iter().collect();
        if self.nodes.is_empty() {
            return Err(Error::NoGpus(partitions));
        }
        self.nodes_due = Instant::now() + NODES_EVERY;
        Ok(())
    }

    /// Fetches the records of these jobs.
    fn read_records(&self, keys: &[&Key]) -> Result<HashMap<Key, Record>, Error> {
        let mut records = HashMap::new();
        for keys in keys.chunks(RECORDS_AT_ONCE) {
            let input: String = keys.iter().map(|key| format!("show job {key}\n")).collect();
            // A job that has gone in the meantime is no failure; the next squeue will not list it.
            let printed = self.commands.run("scontrol", &["-d"], &input)?;
            records.extend(read::records(&printed.out));
            if records.is_empty()
                && !printed.err.is_empty()
                && !printed.err.contains("Invalid job id")
            {
                let message = one_line(&printed.err);
                return Err(Error::Unreachable { command: "scontrol show job".into(), message });
            }
        }
        Ok(records)
    }

    /// Whether the job's record has to be read again.
    fn is_stale(&self, row: &Row, again: bool) -> bool {
        if matches!(row.stands, Stands::Over(_)) {
            return false;
        }
        let Some(known) = self.known.get(&row.key) else { return true };
        let has_started =
            row.stands == Stands::Running && known.started_s != row.started.parse().ok();
        let may_tell_more = known.is_early || row.stands == Stands::Running;
        known.stands != row.stands || has_started || (again && known.managed && may_tell_more)
    }

    fn update(&mut self, rows: Vec<Row>, mut records: HashMap<Key, Record>) {
        let now_s = unix_s();
        let listed: HashSet<&Key> = rows.iter().map(|row| &row.key).collect();
        self.known.retain(|key, _| listed.contains(key));
        for row in rows {
            let array = row.key.split('_').next().unwrap_or("");
            let record =
                records.remove(&row.key).or_else(|| records.get(&format!("{array}_*")).cloned());
            let is_claim = record.as_ref().is_some_and(|record| record.name == claim::NAME);
            let managed =
                !is_claim && row.partitions.iter().any(|p| self.config.partitions.contains(p));
            let job = match record {
                Some(record) => joined(&row, record, managed, now_s),
                None => match self.known.remove(&row.key) {
                    Some(known) => SeenJob { stands: row.stands, ..known },
                    // It is over and was never looked at, or it vanished while we looked.
                    None if !matches!(row.stands, Stands::Over(_)) => continue,
                    None => joined(&row, Record::default(), managed, now_s),
                },
            };
            let required = topo::expand(&row.required).unwrap_or_default();
            self.known.insert(row.key, SeenJob { required, reason: row.reason, ..job });
        }
    }
}

fn joined(row: &Row, record: Record, managed: bool, now_s: Seconds) -> SeenJob {
    // Slurm itself puts off a requeued job; that is no wish of the user's.
    let begins_later = record.start_s.is_some_and(|start_s| start_s > now_s + 1.0);
    let waits = matches!(row.stands, Stands::Held | Stands::Queued);
    SeenJob {
        name: record.name,
        user: record.user,
        managed,
        stands: row.stands,
        wants: record.wants.unwrap_or(Wants::Nothing),
        comment: record.comment,
        reason: String::new(),
        required: Vec::new(),
        holds: record.holds,
        restarts: record.restarts,
        can_requeue: record.can_requeue,
        is_early: waits && record.restarts == 0 && (record.has_dependency || begins_later),
        submitted_s: record.submitted_s,
        started_s: row.started.parse().ok(),
        limit_s: record.limit_s,
    }
}

impl Engine for Slurm {
    fn topology(&mut self) -> Result<(Topology, Vec<String>), Error> {
        self.read_nodes()?;
        let shown = self.commands.run("scontrol", &["show", "topology"], "")?;
        let switches = read::topology_conf(&shown.out);
        // All nodes of the cluster, so that those of other partitions are known to have no place.
        let all = self.commands.ask("sinfo", &["-h", "-a", "-N", "-o", "%N"])?;
        let others: HashSet<&str> =
            all.lines().map(str::trim).filter(|name| !name.is_empty()).collect();
        let mut nodes = String::new();
        for (name, node) in &self.nodes {
            nodes.push_str(&format!("NodeName={name} Gres=gpu:{}:{}\n", node.gpu_type, node.gpus));
        }
        let mut others: Vec<&str> =
            others.into_iter().filter(|name| !self.nodes.contains_key(*name)).collect();
        others.sort_unstable();
        others.iter().for_each(|name| nodes.push_str(&format!("NodeName={name}\n")));
        let mut files: Vec<(&[u8], &str)> = vec![(nodes.as_bytes(), "sinfo")];
        if !switches.is_empty() {
            files.insert(0, (switches.as_bytes(), "scontrol show topology"));
        }
        let cluster = topo::read(&files, None)?;
        Ok((Topology { name: self.partitions(), ..cluster.topology }, cluster.notes))
    }

    fn observe(&mut self) -> Result<Seen, Error> {
        let now = Instant::now();
        if now >= self.nodes_due {
            self.read_nodes()?;
        }
        let again = now >= self.records_due;
        if again {
            self.records_due = now + RECORDS_EVERY;
        }
        let text =
            self.commands.ask("squeue", &["-h", "-a", "-r", "-t", "all", "-o", read::ROW])?;
        let rows = read::rows(&text)?;
        let waits = |row: &&Row| matches!(row.stands, Stands::Held | Stands::Queued);
        let waiting = rows.iter().filter(waits).map(|row| &row.key).collect();
        self.claims.iter_mut().try_for_each(|claim| claim.keep(&self.commands, &waiting))?;
        let stale: Vec<&Key> =
            rows.iter().filter(|row| self.is_stale(row, again)).map(|row| &row.key).collect();
        let records = match stale.is_empty() {
            true => HashMap::new(),
            false => self.read_records(&stale)?,
        };
        self.update(rows, records);
        let jobs = self.known.iter().map(|(key, job)| (key.clone(), job.clone())).collect();
        Ok(Seen { jobs, nodes: self.nodes.clone() })
    }

    fn act(&mut self, orders: &[Order]) -> Result<Vec<Complaint>, Error> {
        let mut input = String::new();
        let mut complaints = Vec::new();
        for order in orders {
            match order {
                Order::Signal { job, signal } => {
                    let signal = format!("--signal={signal}");
                    let printed = self.commands.run("scancel", &["--batch", &signal, job], "")?;
                    if !printed.ok {
                        let message = one_line(&printed.err);
                        complaints.push(Complaint { job: Some(job.clone()), message });
                    }
                }
                _ => lines(order, &mut input),
            }
        }
        if !input.is_empty() {
            let printed = self.commands.run("scontrol", &["-Q"], &input)?;
            for line in printed.err.lines().filter(|line| !line.trim().is_empty()) {
                let command = "scontrol update".into();
                if is_denied(line) {
                    return Err(Error::Denied { command, message: line.trim().into() });
                }
                let named = line.rsplit_once("for job ").map(|(_, key)| key.trim().to_owned());
                complaints.push(Complaint { job: named, message: line.trim().into() });
            }
        }
        Ok(complaints)
    }
}

/// The lines for scontrol's input that carry the order out.
fn lines(order: &Order, input: &mut String) {
    let text = match order {
        Order::Bind { job, nodes } => {
            let (list, count) = (nodes.join(","), nodes.len());
            format!("update jobid={job} reqnodelist={list} numnodes={count}-{count}\n")
        }
        // Slurm lets a requeued job wait for two minutes; `starttime` ends that.
        Order::Release { job } => format!("update jobid={job} starttime=now\nrelease {job}\n"),
        Order::HandOver { job, unbind: Some(nodes) } => format!(
            "update jobid={job} reqnodelist= numnodes={nodes} starttime=now\nrelease {job}\n"
        ),
        Order::HandOver { job, unbind: None } => format!("release {job}\n"),
        Order::Hold { job } => format!("hold {job}\n"),
        // Without `Incomplete`, a job that has ended meanwhile would run once more.
        Order::Requeue { job } => format!("requeuehold Incomplete {job}\n"),
        Order::Signal { .. } => return,
    };
    input.push_str(&text);
}

pub fn unix_s() -> Seconds {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}
