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
mod trouble;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use hither_core::Seconds;
use hither_core::topology::Topology;
use hither_sched::job::Host;
use hither_sched::topo;

use crate::engine::{
    Complaint, Counts, Engine, Error, Key, Limit, Obstacle, Order, Scope, Seen, SeenJob, SeenNode,
    Stands, Wants,
};
use crate::wish::Wish;
use claim::{Claim, NoClaim};
use command::{Commands, is_denied, one_line};
use read::{Record, Reservation, Row};

/// The oldest release whose commands print what is read here.
const VERSION_MIN: (u32, u32) = (20, 11);
/// How often nodes are looked at: while jobs wait, a node that drains should be seen before it costs a try.
const NODES_WAITED_FOR_EVERY: Duration = Duration::from_secs(1);
const NODES_EVERY: Duration = Duration::from_secs(5);
/// How often records are read again for progress, fulfilled dependencies and begin times.
const RECORDS_EVERY: Duration = Duration::from_secs(5);
/// How often records of held jobs are read again: users change comments and requests.
const HELD_EVERY: Duration = Duration::from_secs(30);
/// How often limits and reservations are read.
const LIMITS_EVERY: Duration = Duration::from_secs(60);
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
    /// Lines of slurm.conf, as `scontrol show config` prints them.
    settings: String,
    /// What is known of each job beyond its row.
    known: HashMap<Key, SeenJob>,
    nodes: BTreeMap<String, SeenNode>,
    /// Notes on nodes that are left to Slurm.
    node_notes: Vec<String>,
    nodes_read: Instant,
    records_due: Instant,
    held_due: Instant,
    limits: Vec<Limit>,
    limits_due: Instant,
    reservations: Vec<Reservation>,
    /// Tasks that arrays may run at a time.
    throttles: BTreeMap<String, u32>,
    claims: Vec<Claim>,
    /// Whether Slurm has taken an order of this user.
    has_acted: bool,
}

impl Slurm {
    /// Makes sure that Slurm is there, recent enough, and has the partitions.
    pub fn connect(config: Config) -> Result<Self, Error> {
        let commands = Commands { bin: config.bin.clone(), limit: config.limit };
        let version = commands.ask("scontrol", &["--version"])?;
        if read::version(&version).is_none_or(|found| found < VERSION_MIN) {
            return Err(trouble::version(&one_line(&version)));
        }
        let settings = commands.ask("scontrol", &["show", "config"])?;
        let now = Instant::now();
        let mut slurm = Self {
            config,
            commands,
            settings,
            known: HashMap::new(),
            nodes: BTreeMap::new(),
            node_notes: Vec::new(),
            nodes_read: now,
            records_due: now + RECORDS_EVERY,
            held_due: now + HELD_EVERY,
            limits: Vec::new(),
            limits_due: now,
            reservations: Vec::new(),
            throttles: BTreeMap::new(),
            claims: Vec::new(),
            has_acted: false,
        };
        slurm.read_nodes()?;
        Ok(slurm)
    }

    fn setting(&self, key: &str) -> &str {
        let line = self.settings.lines().find(|line| line.split([' ', '=']).next() == Some(key));
        line.and_then(|line| line.split_once('=')).map_or("", |(_, value)| value.trim())
    }

    /// The user whom Slurm's controller runs as.
    fn slurm_user(&self) -> &str {
        self.setting("SlurmUser").split('(').next().unwrap_or("")
    }

    /// What tells this cluster from all others: its name and its controller.
    pub fn identity(&self) -> String {
        // With several controllers the lines are numbered.
        let host = match self.setting("SlurmctldHost") {
            "" => self.setting("SlurmctldHost[0]"),
            host => host,
        };
        [self.setting("ClusterName"), host, self.setting("SlurmctldPort")].join(" ")
    }

    /// Claims the partitions: no scheduler of another host decides for them while this one lives. If
    /// Slurm takes no claim from this user, the words say why.
    pub fn claim(&mut self) -> Result<Option<String>, Error> {
        for partition in &self.config.partitions {
            match Claim::take(&self.commands, partition, self.slurm_user()) {
                Ok(claim) => self.claims.push(claim),
                Err(NoClaim::Refused(message)) => return Ok(Some(message)),
                Err(NoClaim::Error(error)) => return Err(error),
            }
        }
        Ok(None)
    }

    /// The claims on the partitions, whoever has them.
    pub fn listed_claims(&self) -> Result<Vec<claim::Listed>, Error> {
        let mut claims = Vec::new();
        for partition in &self.config.partitions {
            claims.extend(claim::list(&self.commands, partition, self.slurm_user())?);
        }
        Ok(claims)
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
            return Err(trouble::no_partition(&partitions, &known));
        }
        (self.nodes, self.node_notes) = read::nodes(&text)?;
        if !self.setting("SelectTypeParameters").contains("MEMORY") {
            // Slurm does not count memory, and shows what jobs ask for all the same.
            self.nodes.values_mut().for_each(|node| node.host.memory_mb = Host::UNKNOWN.memory_mb);
        }
        self.nodes_read = Instant::now();
        if self.nodes.is_empty() {
            return Err(trouble::no_gpus(&partitions));
        }
        Ok(())
    }

    /// Limits of users, accounts and classes of service. Without accounting there are none.
    fn read_limits(&mut self) {
        let enforced = self.setting("AccountingStorageEnforce");
        if !["limits", "qos", "safe", "all"].iter().any(|word| enforced.contains(word)) {
            return;
        }
        let cluster = format!("cluster={}", self.setting("ClusterName"));
        let qos = ["-nP", "show", "qos", "format=name,maxtrespu,maxjobspu,grptres,grpjobs"];
        let of_accounts = ["-nP", "show", "assoc", "where", &cluster];
        let of_accounts =
            [&of_accounts[..], &["format=account,user,grptres,grpjobs,maxjobs"]].concat();
        let answers = [&qos[..], &of_accounts].map(|args| self.commands.ask("sacctmgr", args));
        // A database that is away leaves the limits as they were.
        if let [Ok(qos), Ok(accounts)] = answers {
            self.limits = read::qos_limits(&qos);
            self.limits.extend(read::account_limits(&accounts));
        }
    }

    fn read_reservations(&mut self) {
        // A controller that does not answer leaves them as they were.
        if let Ok(text) = self.commands.ask("scontrol", &["-o", "show", "reservation"]) {
            self.reservations = read::reservations(&text);
        }
    }

    /// The job as it is shown to the driver. Slurm starts no job on nodes that are reserved before its time limit
    /// ends, and says so only when it is released; here too few others are left for the job.
    fn shown(&self, job: &SeenJob, now_s: Seconds) -> SeenJob {
        let mut job = job.clone();
        let Wants::Gpus { count, .. } = job.wants else { return job };
        if self.reservations.is_empty()
            || (job.stands, job.obstacle) != (Stands::Held, Obstacle::None)
        {
            return job;
        }
        let ends_s = now_s + job.limit_s.unwrap_or(Seconds::INFINITY);
        let is_reserved = |node: &str| {
            let meets = |r: &Reservation| now_s < r.end_s && r.start_s < ends_s;
            self.reservations.iter().any(|r| meets(r) && r.nodes.iter().any(|name| name == node))
        };
        let free = self.nodes.iter().filter(|(name, _)| !is_reserved(name));
        if free.map(|(_, node)| node.gpus).sum::<u32>() < count {
            job.obstacle = Obstacle::Reserved;
        }
        job
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
                return Err(trouble::unreachable("scontrol show job", &message));
            }
        }
        Ok(records)
    }

    /// Whether the job's record has to be read again.
    fn is_stale(&self, row: &Row, again: bool, held_again: bool) -> bool {
        if matches!(row.stands, Stands::Over(_)) {
            return false;
        }
        let Some(known) = self.known.get(&row.key) else { return true };
        let has_started =
            row.stands == Stands::Running && known.started_s != row.started.parse().ok();
        let may_tell_more =
            known.obstacle == Obstacle::Early || known.wish.hold || row.stands == Stands::Running;
        let is_due = (again && may_tell_more) || (held_again && row.stands == Stands::Held);
        known.stands != row.stands || has_started || (is_due && known.managed)
    }

    fn update(&mut self, rows: Vec<Row>, mut records: HashMap<Key, Record>) {
        let now_s = unix_s();
        let listed: HashSet<&Key> = rows.iter().map(|row| &row.key).collect();
        self.known.retain(|key, _| listed.contains(key));
        let arrays: BTreeSet<&str> = rows.iter().filter_map(|row| array_of(&row.key)).collect();
        self.throttles.retain(|array, _| arrays.contains(array.as_str()));
        for row in rows {
            let record = records.remove(&row.key);
            if let (Some(throttle), Some(array)) =
                (record.as_ref().and_then(|record| record.throttle), array_of(&row.key))
            {
                self.throttles.insert(array.to_owned(), throttle);
            }
            let is_claim = record.as_ref().is_some_and(|record| record.name == claim::NAME);
            let managed =
                !is_claim && row.partitions.iter().any(|p| self.config.partitions.contains(p));
            let said = read::obstacle(row.stands, &row.reason);
            let required = topo::expand(&row.required).unwrap_or_default();
            let job = match (record, self.known.remove(&row.key)) {
                (Some(record), _) => joined(&row, record, managed, now_s),
                (None, Some(known)) => {
                    let is_early = known.obstacle == Obstacle::Early && said == Obstacle::None;
                    let obstacle = if is_early { Obstacle::Early } else { said };
                    SeenJob { stands: row.stands, obstacle, ..known }
                }
                // It is over and was never looked at, or it vanished while we looked.
                (None, None) if !matches!(row.stands, Stands::Over(_)) => continue,
                (None, None) => joined(&row, Record::default(), managed, now_s),
            };
            self.known.insert(row.key, SeenJob { required, reason: row.reason, ..job });
        }
    }
}

/// The array that a task belongs to.
fn array_of(key: &str) -> Option<&str> {
    key.split_once('_').map(|(array, _)| array)
}

fn joined(row: &Row, record: Record, managed: bool, now_s: Seconds) -> SeenJob {
    // Slurm itself puts off a requeued job; that is no wish of the user's.
    let begins_later = record.start_s.is_some_and(|start_s| start_s > now_s + 1.0);
    let waits = matches!(row.stands, Stands::Held | Stands::Queued);
    let is_early = waits && record.restarts == 0 && (record.has_dependency || begins_later);
    let obstacle = match read::obstacle(row.stands, &row.reason) {
        Obstacle::None if is_early => Obstacle::Early,
        obstacle => obstacle,
    };
    SeenJob {
        name: record.name,
        user: record.user,
        account: row.account.clone(),
        qos: row.qos.clone(),
        managed,
        stands: row.stands,
        wants: record.wants.unwrap_or(Wants::Nothing),
        wish: Wish::parse(&record.comment),
        reason: String::new(),
        obstacle,
        required: Vec::new(),
        holds: record.holds,
        restarts: record.restarts,
        can_requeue: record.can_requeue,
        submitted_s: record.submitted_s,
        started_s: row.started.parse().ok(),
        limit_s: record.limit_s,
    }
}

impl Engine for Slurm {
    fn name(&self) -> &'static str {
        "Slurm"
    }

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
        let waits = self.known.values().any(|job| job.managed && job.stands == Stands::Held);
        let every = if waits { NODES_WAITED_FOR_EVERY } else { NODES_EVERY };
        if now >= self.nodes_read + every {
            self.read_nodes()?;
        }
        if now >= self.limits_due {
            self.limits_due = now + LIMITS_EVERY;
            self.read_limits();
            self.read_reservations();
        }
        let again = now >= self.records_due;
        if again {
            self.records_due = now + RECORDS_EVERY;
        }
        let held_again = now >= self.held_due;
        if held_again {
            self.held_due = now + HELD_EVERY;
        }
        let text =
            self.commands.ask("squeue", &["-h", "-a", "-r", "-t", "all", "-o", read::ROW])?;
        let (rows, unknown) = read::rows(&text)?;
        let waits = |row: &&Row| matches!(row.stands, Stands::Held | Stands::Queued);
        let waiting = rows.iter().filter(waits).map(|row| &row.key).collect();
        let slurm_user = self.slurm_user().to_owned();
        let mut claims = self.claims.iter_mut();
        claims.try_for_each(|claim| claim.keep(&self.commands, &waiting, &slurm_user))?;
        let stale: Vec<&Key> = rows
            .iter()
            .filter(|row| self.is_stale(row, again, held_again))
            .map(|row| &row.key)
            .collect();
        let records = match stale.is_empty() {
            true => HashMap::new(),
            false => self.read_records(&stale)?,
        };
        self.update(rows, records);
        let now_s = unix_s();
        let jobs =
            self.known.iter().map(|(key, job)| (key.clone(), self.shown(job, now_s))).collect();
        let throttles = self.throttles.iter().map(|(array, max)| Limit {
            scope: Scope::Array,
            of: array.clone(),
            counts: Counts::Jobs,
            max: *max,
        });
        let limits = self.limits.iter().cloned().chain(throttles).collect();
        let states = unknown.into_iter().map(|state| {
            format!("the state {state} is not known: its jobs are left alone, and what they hold is taken")
        });
        let notes = self.node_notes.iter().cloned().chain(states).collect();
        Ok(Seen { jobs, nodes: self.nodes.clone(), limits, notes })
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
            let lines: Vec<&str> =
                printed.err.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
            let denied: Vec<&&str> = lines.iter().filter(|line| is_denied(line)).collect();
            self.has_acted |= denied.is_empty();
            // One job may be denied for a reason of its own; all of them are denied to the wrong user.
            if let (Some(line), false) = (denied.first(), self.has_acted) {
                return Err(trouble::denied("scontrol update", line));
            }
            complaints.extend(lines.into_iter().map(|line| {
                let named = line.rsplit_once("for job ").map(|(_, key)| key.trim().to_owned());
                Complaint { job: named, message: line.into() }
            }));
        }
        Ok(complaints)
    }
}

/// The lines for scontrol's input that carry the order out.
fn lines(order: &Order, input: &mut String) {
    let text = match order {
        // The least stays what the user asked for, so that it can be told from what Hither chose.
        Order::Bind { job, nodes, fewest } => {
            let (list, count) = (nodes.join(","), nodes.len());
            let fewest = (*fewest as usize).min(count);
            format!("update jobid={job} reqnodelist={list} numnodes={fewest}-{count}\n")
        }
        // Slurm lets a requeued job wait for two minutes; `starttime` ends that.
        Order::Release { job } => format!("update jobid={job} starttime=now\nrelease {job}\n"),
        Order::HandOver { job, unbind: Some(nodes) } => format!(
            "update jobid={job} reqnodelist= numnodes={nodes} starttime=now\nrelease {job}\n"
        ),
        Order::HandOver { job, unbind: None } => format!("release {job}\n"),
        // As its user would hold it: an administrator's hold is obeyed.
        Order::Hold { job } => format!("uhold {job}\n"),
        // Without `Incomplete`, a job that has ended meanwhile would run once more.
        Order::Requeue { job } => format!("requeuehold Incomplete {job}\n"),
        Order::Signal { .. } => return,
    };
    input.push_str(&text);
}

pub use crate::run::unix_s;
