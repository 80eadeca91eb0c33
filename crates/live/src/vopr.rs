//! The real driver on an engine that lies: orders are lost, late, doubled and refused, looks fail or show what was;
//! users hold, release and cancel; nodes drain, go and join; limits apply; the driver is killed and goes on from its
//! journal, as another version with another policy, on this host or on another with an older journal.
//!
//! The engine keeps the truth. It judges each order by it, and in the end every job must be over, and the books
//! empty.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use hither_core::Seconds;
use hither_core::seed::stream;
use hither_core::topology::{Machine, Topology};
use hither_sched::cluster::Status;
use hither_sched::event::End;
use hither_sched::job::{Host, Length};
use hither_sched::policy;
use hither_sched::profile::Library;
use hither_sched::state::{Phase, State};
use hither_sched::vopr::Case;
use rand::RngExt;
use rand_pcg::Pcg64Mcg;

use crate::attempts::Limits;
use crate::drive::{Driver, Options};
use crate::engine::{
    Complaint, Counts, Engine, Error, Held, Key, Limit, Obstacle, Order, Scope, Seen, SeenJob,
    SeenNode, Stands, Wants,
};
use crate::journal::{Journal, Setup};
use crate::wish::Wish;

/// Trouble comes until then; afterwards the engine is good and all jobs must end.
const TROUBLE_S: Seconds = 6_000.0;
/// No case needs as long as this once the trouble is over: jobs may hold out until they are overdue.
const END_S: Seconds = 6e6;
const STEPS_MAX: u32 = 60_000;
/// Jobs of a case: each is looked at at every step.
const JOBS_MAX: usize = 24;

/// What a case draws beside what [`Case`] does.
pub const DRAWN: &[(&str, &str)] = &[
    (
        "live: orders",
        "1 in 10 is lost, late, doubled or complained about; 1 in 20 batches fails as a whole",
    ),
    ("live: looks", "1 in 20 fails, 1 in 20 shows what was"),
    ("live: starts", "refused for want of room, a limit of the user, or without a word"),
    ("live: stops", "take up to 200 s; 1 in 20 jobs cannot be stopped, and not all of them say so"),
    ("live: users", "hold, release, cancel; an administrator holds for a while"),
    ("live: machines", "drain, go, come back and join; others take GPUs, CPUs and memory"),
    ("live: profiles", "unknown for two jobs in three, and reports of any pace"),
    (
        "live: restarts",
        "at 2 of 100 steps, now and then with another policy, an older journal or none",
    ),
];

/// A bug of the driver that it does not have, to show that it would be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// It releases jobs that an administrator holds.
    ReleasesHeld,
    /// It never starts one of the jobs.
    ForgetsJob,
    /// It stops jobs that may not be stopped.
    StopsAnybody,
}

/// A job as the engine has it.
#[derive(Debug, Clone)]
struct Real {
    seen: SeenJob,
    left_s: Seconds,
    /// What each GPU takes of CPUs and memory.
    needs: Host,
    /// When it has left its GPUs.
    leaves_s: Seconds,
    /// An administrator holds it until then.
    held_until_s: Seconds,
    /// A stop has no effect, though the engine does not say so.
    is_stubborn: bool,
    arrives_s: Seconds,
    is_left: bool,
}

struct World {
    rng: Pcg64Mcg,
    now: Seconds,
    jobs: BTreeMap<Key, Real>,
    nodes: BTreeMap<String, SeenNode>,
    sizes: BTreeMap<String, u32>,
    foreign: BTreeMap<String, u32>,
    topology: Topology,
    /// GPUs that a user may have at a time.
    limit: Option<u32>,
    tells_limit: bool,
    late: Vec<(Seconds, Order)>,
    shown: Seen,
    wrong: Option<String>,
    bug: Option<Bug>,
}

#[derive(Clone)]
struct Liar(Rc<RefCell<World>>);

impl Engine for Liar {
    fn name(&self) -> &'static str {
        "the engine"
    }

    fn topology(&mut self) -> Result<(Topology, Vec<String>), Error> {
        Ok((self.0.borrow().topology.clone(), Vec::new()))
    }

    fn observe(&mut self) -> Result<Seen, Error> {
        let mut world = self.0.borrow_mut();
        match world.lies(0.1) {
            true if world.rng.random_bool(0.5) => Err(Error::Passing("no answer".into())),
            true => Ok(world.shown.clone()),
            false => {
                world.shown = world.look();
                Ok(world.shown.clone())
            }
        }
    }

    fn act(&mut self, orders: &[Order]) -> Result<Vec<Complaint>, Error> {
        let mut world = self.0.borrow_mut();
        if world.lies(0.05) {
            return Err(Error::Passing("connection reset".into()));
        }
        let mut complaints = Vec::new();
        for order in orders {
            let order = world.sabotaged(order.clone());
            match if world.lies(0.1) { world.rng.random_range(0..4) } else { 4 } {
                0 => {}
                1 => {
                    let at_s = world.now + world.rng.random_range(0.0..30.0);
                    world.late.push((at_s, order));
                }
                2 => {
                    world.obey(&order, false);
                    world.obey(&order, false);
                }
                3 => {
                    let job = Some(order.job().clone());
                    complaints.push(Complaint { job, message: "invalid request".into() });
                }
                _ => world.obey(&order, false),
            }
        }
        Ok(complaints)
    }
}

impl World {
    fn in_trouble(&self) -> bool {
        self.now < TROUBLE_S
    }

    fn lies(&mut self, share: f64) -> bool {
        self.in_trouble() && self.rng.random_bool(share)
    }

    fn look(&self) -> Seen {
        let is_here = |job: &&Real| job.arrives_s <= self.now;
        let users: BTreeSet<&str> = self.jobs.values().map(|job| job.seen.user.as_str()).collect();
        let limit = |user: &&str| Limit {
            scope: Scope::QosUser,
            of: format!(" {user}"),
            counts: Counts::Gpus,
            max: self.limit.unwrap_or(0),
        };
        Seen {
            jobs: self
                .jobs
                .iter()
                .filter(|(_, job)| is_here(job))
                .map(|(key, job)| (key.clone(), job.seen.clone()))
                .collect(),
            nodes: self.nodes.clone(),
            limits: match self.limit.filter(|_| self.tells_limit) {
                Some(_) => users.iter().map(limit).collect(),
                None => Vec::new(),
            },
            notes: Vec::new(),
        }
    }

    fn sabotaged(&self, order: Order) -> Order {
        match (self.bug, &order) {
            (Some(Bug::ForgetsJob), Order::Release { job } | Order::HandOver { job, .. })
                if self.jobs.keys().next() == Some(job) =>
            {
                Order::Hold { job: job.clone() }
            }
            (Some(Bug::StopsAnybody), Order::Bind { .. }) => {
                let fixed = |(_, job): &(&Key, &Real)| {
                    job.seen.stands == Stands::Running && !job.seen.can_requeue
                };
                let victim = self.jobs.iter().find(fixed);
                victim.map_or(order, |(job, _)| Order::Requeue { job: job.clone() })
            }
            (Some(Bug::ReleasesHeld), Order::Bind { .. }) => {
                let held = self.shown.jobs.iter().find(|(key, job)| {
                    job.obstacle == Obstacle::Hold && self.jobs[*key].held_until_s > self.now
                });
                held.map_or(order, |(job, _)| Order::Release { job: job.clone() })
            }
            _ => order,
        }
    }

    fn complain(&mut self, what: String) {
        self.wrong.get_or_insert(what);
    }

    /// An order arrives, perhaps late: what was right when it was given is judged by what was shown then.
    fn obey(&mut self, order: &Order, is_late: bool) {
        let now = self.now;
        let Some(job) = self.jobs.get_mut(order.job()) else {
            return self.complain(format!("an order for a job that never was: {order:?}"));
        };
        let is_held_by_admin = job.held_until_s > now;
        let (stands, key) = (job.seen.stands, order.job());
        match order {
            Order::Bind { nodes, .. } if stands == Stands::Held => {
                job.seen.required = nodes.clone()
            }
            Order::Release { .. } | Order::HandOver { .. } if stands == Stands::Held => {
                // The engine itself refuses this to users; an operator like Hither may do it, and must not.
                if !is_late && is_held_by_admin && self.shown.jobs[key].obstacle == Obstacle::Hold {
                    return self.complain(format!("job {key} is held, and was released"));
                }
                if is_held_by_admin {
                    return;
                }
                if let Order::HandOver { .. } = order {
                    (job.is_left, job.seen.required) = (true, Vec::new());
                }
                job.seen.stands = Stands::Queued;
            }
            Order::Hold { .. } if stands == Stands::Queued => {
                (job.seen.stands, job.seen.obstacle) = (Stands::Held, Obstacle::None);
            }
            Order::Requeue { .. } if stands == Stands::Running => {
                if !job.seen.can_requeue {
                    return self.complain(format!("job {key} may not be stopped, and was"));
                }
                if !job.is_stubborn {
                    let takes_s =
                        if now < TROUBLE_S { self.rng.random_range(0.0..200.0) } else { 1.0 };
                    job.seen.stands = Stands::Leaving;
                    job.leaves_s = now + takes_s;
                }
            }
            _ => {}
        }
    }

    fn used(&self, node: &str) -> (u32, Host) {
        let held = self.jobs.values().flat_map(|job| &job.seen.holds).filter(|h| h.node == node);
        held.fold((0, Host::NONE), |(gpus, host), held| (gpus + held.gpus, host.plus(held.host)))
    }

    /// Time goes on: jobs end, leave, and start where the engine lets them.
    fn pass(&mut self, to_s: Seconds) {
        let passed_s = to_s - self.now;
        self.now = to_s;
        let due: Vec<Order> =
            self.late.extract_if(.., |(at_s, _)| *at_s <= to_s).map(|(_, order)| order).collect();
        due.iter().for_each(|order| self.obey(order, true));
        let keys: Vec<Key> = self.jobs.keys().cloned().collect();
        for key in &keys {
            let job = self.jobs.get_mut(key).expect("it was listed");
            match job.seen.stands {
                Stands::Running => {
                    job.left_s -= passed_s;
                    if job.left_s <= 0.0 {
                        job.seen.stands = Stands::Over(End::Finished);
                        job.seen.holds.clear();
                    }
                }
                Stands::Leaving if job.leaves_s <= to_s => {
                    job.seen.stands = Stands::Held;
                    job.seen.holds.clear();
                    job.seen.restarts += 1;
                }
                Stands::Held if job.held_until_s <= to_s && job.seen.obstacle == Obstacle::Hold => {
                    job.seen.obstacle = Obstacle::None;
                }
                _ => {}
            }
        }
        for key in &keys {
            if self.jobs[key].seen.stands == Stands::Queued && self.jobs[key].arrives_s <= to_s {
                self.try_start(key);
            }
        }
    }

    fn try_start(&mut self, key: &Key) {
        let job = &self.jobs[key];
        let Wants::Gpus { count, split, .. } = &job.seen.wants else { return };
        let (count, split, user) = (*count, *split, job.seen.user.clone());
        let of_user = |other: &&Real| other.seen.user == user && other.seen.is_active();
        let active: u32 = self.jobs.values().filter(of_user).map(|other| other.seen.gpus()).sum();
        let is_limited = self.in_trouble() && self.limit.is_some_and(|max| active + count > max);
        let nodes: Vec<String> = match self.jobs[key].seen.required.is_empty() {
            true => self.nodes.keys().cloned().collect(),
            false => self.jobs[key].seen.required.clone(),
        };
        let mut left = count;
        let mut holds = Vec::new();
        for node in nodes {
            let Some(real) = self.nodes.get(&node).filter(|n| n.status == Status::Up) else {
                continue;
            };
            let (gpus, host) = self.used(&node);
            let foreign = self.foreign.get(&node).copied().unwrap_or(0);
            let free = real.gpus.saturating_sub(gpus).saturating_sub(foreign);
            let host = real.host.minus(host).minus(Host { cpus: foreign, memory_mb: 0 });
            let chunks = split.chunks_on(free, host).min(left / split.chunk);
            if chunks > 0 {
                let gpus = chunks * split.chunk;
                left -= gpus;
                holds.push(Held { node, gpus, host: split.host_of(gpus) });
            }
        }
        let refuses = self.lies(0.1);
        let job = self.jobs.get_mut(key).expect("it waits");
        job.seen.obstacle = match (is_limited, left) {
            (true, _) => Obstacle::Limit(Scope::QosUser, Counts::Gpus),
            (false, 1..) => Obstacle::Place,
            _ => Obstacle::None,
        };
        if is_limited || left > 0 || refuses {
            return;
        }
        (job.seen.stands, job.seen.holds) = (Stands::Running, holds);
        let over: Vec<String> = self.nodes.keys().cloned().collect();
        for node in over {
            let (gpus, _) = self.used(&node);
            if gpus > self.sizes[&node] {
                self.complain(format!("node {node} has {gpus} of its GPUs in use"));
            }
        }
    }

    /// Something happens that nobody asked for.
    fn trouble(&mut self) {
        let keys: Vec<Key> = self.jobs.keys().cloned().collect();
        let key = keys[self.rng.random_range(0..keys.len())].clone();
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        let node = names[self.rng.random_range(0..names.len())].clone();
        let now = self.now;
        match self.rng.random_range(0..12) {
            0 => {
                // An administrator or the user holds a job that waits.
                let until_s = now + self.rng.random_range(0.0..500.0);
                let job = self.jobs.get_mut(&key).expect("listed");
                if matches!(job.seen.stands, Stands::Held | Stands::Queued) && !job.is_left {
                    job.held_until_s = until_s;
                    (job.seen.stands, job.seen.obstacle) = (Stands::Held, Obstacle::Hold);
                }
            }
            1 => {
                let job = self.jobs.get_mut(&key).expect("listed");
                if job.seen.stands == Stands::Held
                    && job.held_until_s <= now
                    && job.arrives_s <= now
                {
                    // Released by hand: the engine has it from now on, wherever it was bound to.
                    (job.seen.stands, job.is_left) = (Stands::Queued, true);
                    job.seen.required.clear();
                }
            }
            2 if self.rng.random_bool(0.3) => {
                let job = self.jobs.get_mut(&key).expect("listed");
                job.seen.stands = Stands::Over(End::Cancelled);
                job.seen.holds.clear();
            }
            3 => {
                // A node fails, and the engine puts its jobs back in its own queue.
                self.nodes.get_mut(&node).expect("listed").status = Status::Draining;
                for job in self.jobs.values_mut() {
                    if job.seen.holds.iter().any(|held| held.node == node) {
                        job.seen.holds.clear();
                        job.seen.restarts += 1;
                        job.seen.stands = Stands::Queued;
                    }
                }
            }
            4 => self.nodes.get_mut(&node).expect("listed").status = Status::Draining,
            5 | 6 => self.nodes.values_mut().for_each(|node| node.status = Status::Up),
            7 => {
                let room = self.nodes[&node].gpus.saturating_sub(self.used(&node).0);
                let foreign = self.rng.random_range(0..=room);
                self.foreign.insert(node, foreign);
            }
            8 if names.len() > 1 => drop(self.nodes.remove(&node)),
            9 => {
                // A machine joins a rack, or all machines of a rack move to another.
                let racks = self.topology.levels[1].places.len() as u32;
                let like = self.topology.machines[0].clone();
                let name = format!("new{}", self.topology.machines.len());
                let machine =
                    Machine { name: name.clone(), parent: self.rng.random_range(0..racks), ..like };
                self.sizes.insert(name.clone(), machine.gpus);
                self.nodes.insert(name, node_of(&machine));
                self.topology.machines.push(machine);
                self.topology.machines.sort_by_key(|machine| machine.parent);
            }
            10 => {
                let (done, at_s) = (self.rng.random_range(0.0..1e4), now);
                let job = self.jobs.get_mut(&key).expect("listed");
                job.seen.wish.done = Some(done);
                job.seen.wish.at_s = Some(at_s);
                job.seen.wish.saved = Some(done);
            }
            _ => {}
        }
    }

    /// The trouble is over: all is as it should be.
    fn calm(&mut self) {
        self.foreign.clear();
        for machine in self.topology.machines.clone() {
            self.nodes.entry(machine.name.clone()).or_insert_with(|| node_of(&machine));
        }
        self.nodes.values_mut().for_each(|node| node.status = Status::Up);
        self.limit = None;
        for job in self.jobs.values_mut() {
            job.held_until_s = 0.0;
            if job.seen.stands == Stands::Held {
                job.seen.obstacle = Obstacle::None;
            }
        }
    }
}

fn node_of(machine: &Machine) -> SeenNode {
    SeenNode {
        gpus: machine.gpus,
        gpu_type: machine.gpu_type.clone(),
        host: Host { cpus: 4 * machine.gpus, memory_mb: 1024 * 8 * machine.gpus },
        status: Status::Up,
        state: "idle".into(),
    }
}

fn world(case: &Case, bug: Option<Bug>) -> World {
    let mut rng = stream(case.options.seed, "vopr live");
    let mut jobs = BTreeMap::new();
    for (number, job) in case.scenario.jobs.iter().take(JOBS_MAX).enumerate() {
        let mut split = job.terms.split;
        if rng.random_bool(0.5) {
            // No more than a machine has for each of its GPUs.
            let cpus = rng.random_range(0..=4 * split.chunk);
            split.host = Host { cpus, memory_mb: 1024 * rng.random_range(0..=2) * split.chunk };
        }
        let key = if rng.random_bool(0.2) {
            format!("9000_{number}")
        } else {
            (100 + number).to_string()
        };
        let is_known = rng.random_bool(0.3);
        let wish = Wish {
            model: is_known.then(|| "vgg16".into()),
            iterations: match job.length {
                Length::Iterations(n) if rng.random_bool(0.5) => Some(n.max(1.0)),
                _ => None,
            },
            signal: rng.random_bool(0.3).then(|| "USR1".into()),
            grace_s: Some(rng.random_range(0.0..20.0)),
            ..Wish::default()
        };
        let seen = SeenJob {
            name: job.name.clone(),
            user: job.user.clone(),
            account: String::new(),
            qos: String::new(),
            managed: true,
            stands: Stands::Held,
            wants: Wants::Gpus { count: job.gpus, gpu_type: job.gpu_type.clone(), split },
            wish,
            reason: String::new(),
            obstacle: Obstacle::None,
            required: Vec::new(),
            holds: Vec::new(),
            restarts: 0,
            can_requeue: rng.random_bool(0.95),
            submitted_s: job.submit_s,
            started_s: None,
            limit_s: None,
        };
        let left_s = 10f64.powf(rng.random_range(0.0..3.3));
        let real = Real {
            seen,
            left_s,
            needs: split.host,
            leaves_s: 0.0,
            held_until_s: 0.0,
            is_stubborn: rng.random_bool(0.05),
            arrives_s: (job.submit_s % TROUBLE_S).max(0.0),
            is_left: false,
        };
        jobs.insert(key, real);
    }
    let topology = case.topology.clone();
    let nodes: BTreeMap<String, SeenNode> =
        topology.machines.iter().map(|m| (m.name.clone(), node_of(m))).collect();
    let largest = jobs.values().map(|job: &Real| job.seen.gpus()).max().unwrap_or(1);
    World {
        limit: rng.random_bool(0.3).then(|| largest + rng.random_range(0..8)),
        tells_limit: rng.random_bool(0.5),
        sizes: nodes.iter().map(|(name, node)| (name.clone(), node.gpus)).collect(),
        rng,
        now: 0.0,
        jobs,
        nodes,
        foreign: BTreeMap::new(),
        topology,
        late: Vec::new(),
        shown: Seen::default(),
        wrong: None,
        bug,
    }
}

/// Runs the case to the end; when and what went wrong otherwise.
pub fn run(case: &Case, bug: Option<Bug>) -> Result<(), (Seconds, String)> {
    let world = Rc::new(RefCell::new(world(case, bug)));
    if world.borrow().jobs.is_empty() {
        return Ok(());
    }
    let outcome = run_to_end(case, &world);
    let now = world.borrow().now;
    outcome.map_err(|what| (now, what))
}

fn run_to_end(case: &Case, world: &Rc<RefCell<World>>) -> Result<(), String> {
    let mut hosts = [new_journal()?, new_journal()?];
    let mut policy = case.policy.name;
    let mut at = 0;
    let mut calmed = false;
    let mut lives = 0;
    let mut steps = 0;
    loop {
        let journal = std::mem::replace(&mut hosts[at], new_journal()?);
        let mut driver = open(case, policy, world, journal, lives)?;
        lives += 1;
        let restarts = loop {
            steps += 1;
            if steps > STEPS_MAX || world.borrow().now > END_S {
                return Err(unfinished(world, &driver));
            }
            pass(world, &driver, &mut calmed);
            let now_s = world.borrow().now;
            match driver.step(now_s) {
                Ok(_) | Err(crate::drive::Error::Engine(Error::Passing(_))) => {}
                Err(error) => return Err(error.to_string()),
            }
            if let Some(wrong) = world.borrow_mut().wrong.take() {
                return Err(wrong);
            }
            books_hold(&driver.scheduler.state)?;
            let is_over = |job: &Real| matches!(job.seen.stands, Stands::Over(_));
            if calmed && world.borrow().jobs.values().all(is_over) {
                driver.step(now_s + 1.0).map_err(|error| error.to_string())?;
                return empty(&driver.scheduler.state);
            }
            let mut world = world.borrow_mut();
            if world.lies(0.02) {
                break world.rng.random_range(0..10);
            }
        };
        hosts[at] = driver.journal;
        match restarts {
            // The other host takes over, with what it knew when it last decided, if anything.
            0 => at = 1 - at,
            1 => hosts[at] = new_journal()?,
            2 => {
                let mut world = world.borrow_mut();
                let entry = &policy::TABLE[world.rng.random_range(0..policy::TABLE.len())];
                if is_for_clusters(entry) {
                    policy = entry.name;
                }
            }
            _ => {}
        }
    }
}

/// Whether the policy can run on a real cluster.
pub fn is_for_clusters(entry: &policy::Entry) -> bool {
    !entry.build(&Default::default()).is_clairvoyant() && !entry.name.starts_with("gandiva")
}

fn new_journal() -> Result<Journal, String> {
    Journal::in_memory().map_err(|error| error.to_string())
}

fn open(
    case: &Case,
    policy: &str,
    world: &Rc<RefCell<World>>,
    journal: Journal,
    lives: u32,
) -> Result<Driver<Liar>, String> {
    let policy = match policy::find(policy) {
        Some(entry) if is_for_clusters(entry) => entry.name,
        _ => "dally",
    };
    let settings = toml::to_string(&case.settings).map_err(|error| error.to_string())?;
    let setup = Setup {
        policy: policy.into(),
        settings,
        partitions: vec!["gpu".into()],
        cluster: String::new(),
        epoch_s: 0.0,
        version: format!("0.{lives}"),
    };
    let limits = Limits { start_s: 20.0, stop_s: 60.0, closed_s: 30.0, ..Limits::default() };
    let options = Options { limits, act: true, keep_s: 1e9 };
    let (topology, now_s) = (world.borrow().topology.clone(), world.borrow().now);
    let engine = Liar(world.clone());
    let driver =
        Driver::open(engine, journal, &topology, setup, Library::builtin(), options, now_s);
    driver.map_err(|error| format!("after a restart: {error}"))
}

/// Time goes on until something is due.
fn pass(world: &Rc<RefCell<World>>, driver: &Driver<Liar>, calmed: &mut bool) {
    let mut world = world.borrow_mut();
    let now = world.now;
    if world.in_trouble() {
        let step_s = world.rng.random_range(0.1..60.0);
        world.pass(now + step_s);
        if world.rng.random_bool(0.3) {
            world.trouble();
        }
        return;
    }
    if !std::mem::replace(calmed, true) {
        world.calm();
    }
    // The next end of a run, or the next timer; while anything is asked for, seconds.
    let is_running = |job: &&Real| job.seen.stands == Stands::Running;
    let next_end_s = world.jobs.values().filter(is_running).map(|job| now + job.left_s);
    let timer_s = driver.next_timer().map(|at_s| at_s + driver.setup.epoch_s);
    let due_s = next_end_s.chain(timer_s).fold(f64::INFINITY, f64::min);
    let moves = |job: &Real| matches!(job.seen.stands, Stands::Queued | Stands::Leaving);
    let is_busy = !driver.scheduler.state.in_flight.is_empty() || world.jobs.values().any(moves);
    let longest_s = if is_busy { 5.0 } else { 1e5 };
    world.pass((now + longest_s).min(due_s).max(now + 0.5));
}

/// The scheduler's books agree with themselves: every GPU that is taken belongs to somebody who runs or will.
fn books_hold(state: &State) -> Result<(), String> {
    let mut taken = vec![0; state.cluster.machines.len()];
    let mut hosts = vec![Host::NONE; taken.len()];
    for id in state.jobs.ids() {
        let job = state.job(id);
        for slot in job.run().map_or(&[][..], |run| &run.placement.slots) {
            taken[slot.machine as usize] += slot.gpus;
            let host = &mut hosts[slot.machine as usize];
            *host = host.plus(job.job.terms.split.host_of(slot.gpus));
        }
    }
    for (id, machine) in state.cluster.machines.iter().enumerate() {
        if machine.taken != taken[id] || machine.host_taken != hosts[id] {
            return Err(format!("the books of machine {id} do not add up"));
        }
    }
    let waits = state.jobs.ids().filter(|id| state.job(*id).is_waiting()).count();
    match waits == state.line.len() {
        true => Ok(()),
        false => Err(format!("{waits} jobs wait, the books count {}", state.line.len())),
    }
}

fn empty(state: &State) -> Result<(), String> {
    let has_jobs = state.unfinished > 0 || !state.line.is_empty() || !state.in_flight.is_empty();
    let is_taken = state.cluster.machines.iter().any(|m| m.taken > 0 || !m.stopping.is_empty());
    match has_jobs || is_taken {
        true => Err("all jobs are over, and the scheduler still has some".into()),
        false => Ok(()),
    }
}

fn unfinished(world: &Rc<RefCell<World>>, driver: &Driver<Liar>) -> String {
    let world = world.borrow();
    let is_over = |job: &Real| matches!(job.seen.stands, Stands::Over(_));
    let left: Vec<String> = world
        .jobs
        .iter()
        .filter(|(_, job)| !is_over(job))
        .take(3)
        .map(|(key, job)| {
            let phase =
                driver.managed.get(key).map(|id| match &driver.scheduler.state.job(*id).phase {
                    Phase::Waiting => "waiting",
                    Phase::Parked => "parked",
                    Phase::Starting(_) => "starting",
                    Phase::Running(_) => "running",
                    Phase::Stopping(_) => "stopping",
                    Phase::Over => "over",
                });
            let (stands, obstacle, needs) = (job.seen.stands, job.seen.obstacle, job.needs);
            format!(
                "{key} is {phase:?} in the books, {stands:?} {obstacle:?} on the engine, {needs:?}"
            )
        })
        .collect();
    format!("jobs are not over: {}", left.join("; "))
}
