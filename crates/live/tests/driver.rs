//! The driver against a made-up cluster that obeys or ignores what it is told.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use hither_core::topology::Topology;
use hither_live::attempts::Limits;
use hither_live::drive::{Driver, Options};
use hither_live::engine::{
    Complaint, Counts, Engine, Error, Held, Limit, Obstacle, Order, Scope, Seen, SeenJob, SeenNode,
    Stands, Wants,
};
use hither_live::journal::{Journal, Setup};
use hither_live::wish::Wish;
use hither_live::{replay, what_if};
use hither_sched::cluster::Status;
use hither_sched::event::End;
use hither_sched::job::{Host, Split};
use hither_sched::policy;
use hither_sched::profile::Library;
use hither_sched::sim::{self, Scenario};
use hither_sched::topo;

/// One rack with two machines of four GPUs.
struct World {
    seen: Seen,
    given: Vec<Order>,
    /// Whether orders have an effect.
    obeys: bool,
    topology: Topology,
    /// Whether the files that describe the network cannot be read.
    is_broken: bool,
}

#[derive(Clone)]
struct Fake(Rc<RefCell<World>>);

impl Fake {
    fn new() -> Self {
        let (seen, given) = (Seen::default(), Vec::new());
        let topology = Topology::uniform(1, 2, 4);
        let mut world = World { seen, given, obeys: true, topology, is_broken: false };
        for name in ["gpu001", "gpu002"] {
            let (gpu_type, state) = ("gpu".into(), "idle".into());
            let host = Host::UNKNOWN;
            let node = SeenNode { gpus: 4, gpu_type, host, status: Status::Up, state };
            world.seen.nodes.insert(name.into(), node);
        }
        Self(Rc::new(RefCell::new(world)))
    }

    fn submit(&self, key: &str, wants: Wants) {
        let job = SeenJob {
            name: "job".into(),
            user: "ada".into(),
            account: "ml".into(),
            qos: "normal".into(),
            managed: true,
            stands: Stands::Held,
            wants,
            wish: Wish::default(),
            reason: String::new(),
            obstacle: Obstacle::None,
            required: Vec::new(),
            holds: Vec::new(),
            restarts: 0,
            can_requeue: true,
            submitted_s: 0.0,
            started_s: None,
            limit_s: None,
        };
        self.0.borrow_mut().seen.jobs.insert(key.into(), job);
    }

    fn change(&self, key: &str, change: impl FnOnce(&mut SeenJob)) {
        change(self.0.borrow_mut().seen.jobs.get_mut(key).unwrap());
    }

    fn stands(&self, key: &str) -> Stands {
        self.0.borrow().seen.jobs[key].stands
    }

    fn given(&self) -> Vec<Order> {
        std::mem::take(&mut self.0.borrow_mut().given)
    }
}

impl Engine for Fake {
    fn name(&self) -> &'static str {
        "the engine"
    }

    fn topology(&mut self) -> Result<(Topology, Vec<String>), Error> {
        if self.0.borrow().is_broken {
            return Err(topo::read(&[(b"", "topology.conf")], None).unwrap_err().into());
        }
        Ok((self.0.borrow().topology.clone(), Vec::new()))
    }

    fn observe(&mut self) -> Result<Seen, Error> {
        Ok(self.0.borrow().seen.clone())
    }

    fn act(&mut self, orders: &[Order]) -> Result<Vec<Complaint>, Error> {
        let mut world = self.0.borrow_mut();
        world.given.extend(orders.iter().cloned());
        let obeyed = if world.obeys { orders } else { &[] };
        for order in obeyed {
            let job = world.seen.jobs.get_mut(order.job()).unwrap();
            match order {
                Order::Bind { nodes, .. } => job.required = nodes.clone(),
                Order::Release { .. } => {
                    job.stands = Stands::Running;
                    job.holds = job.required.iter().map(|node| held(node, 4)).collect();
                }
                Order::HandOver { .. } => job.stands = Stands::Queued,
                Order::Hold { .. } => job.stands = Stands::Held,
                Order::Requeue { .. } => {
                    (job.stands, job.holds) = (Stands::Held, Vec::new());
                    job.restarts += 1;
                }
                Order::Signal { .. } => {}
            }
        }
        Ok(Vec::new())
    }
}

fn held(node: &str, gpus: u32) -> Held {
    Held { node: node.into(), gpus, host: Host::NONE }
}

fn gpus(count: u32) -> Wants {
    Wants::Gpus { count, gpu_type: None, split: Split::ANY }
}

fn open(fake: &Fake, journal: Journal) -> Driver<Fake> {
    open_as("dally", fake, journal)
}

fn open_as(policy: &str, fake: &Fake, journal: Journal) -> Driver<Fake> {
    let setup = Setup {
        policy: policy.into(),
        settings: String::new(),
        partitions: vec!["gpu".into()],
        cluster: String::new(),
        epoch_s: 0.0,
        version: "0.2.0".into(),
    };
    let limits = Limits { start_s: 10.0, tries_max: 2, ..Limits::default() };
    let options = Options { limits, act: true, keep_s: 1e9 };
    let topology = fake.0.borrow().topology.clone();
    Driver::open(fake.clone(), journal, &topology, setup, Library::builtin(), options, 0.0).unwrap()
}

fn bind(job: &str, nodes: &[&str]) -> Order {
    let fewest = if nodes.len() == 2 && job == "2" { 2 } else { 1 };
    let nodes = nodes.iter().map(|n| (*n).into()).collect();
    Order::Bind { job: job.into(), nodes, fewest }
}

#[test]
fn a_job_is_bound_looked_at_and_only_then_released() {
    let fake = Fake::new();
    let mut driver = open(&fake, Journal::in_memory().unwrap());
    fake.submit("7", gpus(8));
    driver.step(1.0).unwrap();
    assert_eq!(fake.given(), [bind("7", &["gpu001", "gpu002"])]);
    driver.step(1.1).unwrap();
    assert_eq!(fake.given(), [Order::Release { job: "7".into() }]);
    driver.step(1.2).unwrap();
    assert_eq!(driver.scheduler.state.running.len(), 1);
    // Slurm requeues it by itself: it is held, and placed again.
    fake.change("7", |job| {
        (job.stands, job.restarts, job.holds) = (Stands::Queued, 1, Vec::new());
    });
    for now in [2.0, 2.1, 2.2, 2.3, 4.5, 4.6, 6.7, 6.8] {
        driver.step(now).unwrap();
    }
    assert!(fake.given().contains(&Order::Hold { job: "7".into() }));
    assert_eq!(fake.stands("7"), Stands::Running);
    fake.change("7", |job| job.stands = Stands::Over(End::Finished));
    driver.step(9.0).unwrap();
    assert_eq!(driver.scheduler.state.unfinished, 0);
    assert!(replay::replay(&driver.journal, |_| {}).unwrap().decisions > 0);
}

#[test]
fn orders_without_effect_are_given_again_until_the_job_is_left_to_the_engine() {
    let fake = Fake::new();
    let mut driver = open(&fake, Journal::in_memory().unwrap());
    fake.0.borrow_mut().obeys = false;
    fake.submit("7", gpus(4));
    for tenth in 0..300 {
        driver.step(f64::from(tenth) / 10.0).unwrap();
    }
    let given = fake.given();
    let binds = given.iter().filter(|order| matches!(order, Order::Bind { .. })).count();
    assert!((8..=14).contains(&binds), "{binds} in two times ten seconds");
    assert!(given.contains(&Order::HandOver { job: "7".into(), unbind: None }), "{given:?}");
    assert_eq!(driver.scheduler.state.unfinished, 0);
}

#[test]
fn a_driver_that_was_killed_goes_on_from_journal_and_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal.redb");
    let fake = Fake::new();
    ["7", "8", "9"].iter().for_each(|job| fake.submit(job, gpus(4)));
    for life in 0..12 {
        // Dropped at the end of the loop, with all that it remembers.
        let mut driver = open(&fake, Journal::open(&path).unwrap());
        driver.step(f64::from(life)).unwrap();
        if life == 6 {
            assert_eq!([fake.stands("7"), fake.stands("8")], [Stands::Running; 2]);
            fake.change("7", |job| job.stands = Stands::Over(End::Finished));
        }
    }
    assert_eq!([fake.stands("8"), fake.stands("9")], [Stands::Running; 2]);
    let given = fake.given();
    for job in ["7", "8", "9"] {
        let order = Order::Release { job: job.into() };
        assert_eq!(given.iter().filter(|given| **given == order).count(), 1, "job {job}");
    }
    let journal = Journal::open(&path).unwrap();
    assert!(replay::replay(&journal, |_| {}).unwrap().segments > 1);
}

#[test]
fn gangs_of_a_fixed_shape_wait_for_machines_that_hold_it() {
    let fake = Fake::new();
    let mut driver = open(&fake, Journal::in_memory().unwrap());
    fake.submit("1", gpus(2));
    driver.step(1.0).unwrap();
    assert_eq!(fake.given(), [bind("1", &["gpu001"])]);
    // Six GPUs are free, but only one machine has four.
    let split = Split::even(4);
    fake.submit("2", Wants::Gpus { count: 8, gpu_type: None, split });
    fake.submit("3", Wants::Gpus { count: 4, gpu_type: None, split });
    driver.step(2.0).unwrap();
    assert!(fake.given().contains(&bind("3", &["gpu002"])));
    ["1", "3"].iter().for_each(|job| fake.change(job, |j| j.stands = Stands::Over(End::Finished)));
    driver.step(3.0).unwrap();
    assert_eq!(fake.given(), [bind("2", &["gpu001", "gpu002"])]);
    // Left to Slurm, it still asks for two nodes.
    let seen = driver.seen.jobs["2"].clone();
    let bound = SeenJob { required: vec!["gpu001".into()], ..seen };
    let order = Order::HandOver { job: "2".into(), unbind: Some(2) };
    assert_eq!(bound.hand_over(&"2".into()), order);
}

#[test]
fn a_simulation_begins_where_the_cluster_stands() {
    let fake = Fake::new();
    let mut driver = open(&fake, Journal::in_memory().unwrap());
    fake.submit("1", gpus(8));
    [1.0, 1.1, 1.2].iter().for_each(|now| drop(driver.step(*now).unwrap()));
    fake.submit("2", gpus(4));
    driver.step(2.0).unwrap();
    let topology = Topology::uniform(1, 2, 4);
    let by_journal = what_if::start(&driver.scheduler.state, &topology);
    let seen = what_if::books(&driver.seen, &topology, &Library::builtin(), 2.0);
    let by_slurm = what_if::start(&seen, &topology);
    for start in [by_journal, by_slurm] {
        let jobs = start.jobs.into_iter().map(Arc::new).collect();
        let scenario = Scenario { jobs, running: start.running, ..Scenario::default() };
        let options = sim::Options { record: true, check: true, ..sim::Options::default() };
        let fifo = policy::find("fifo").unwrap().build(&Default::default());
        let record = sim::simulate("fifo", fifo, &start.topology, &scenario, &options).unwrap();
        let [first, second] = &record.jobs[..] else { panic!("{:?}", record.jobs) };
        assert_eq!((first.name.as_str(), first.start_s), ("1", Some(0.0)));
        assert_eq!(first.machines.len(), 2);
        assert_eq!((second.name.as_str(), second.start_s), ("2", Some(first.finish_s)));
    }
}

#[test]
fn what_hither_cannot_place_is_handed_over_and_what_others_hold_is_seen() {
    let fake = Fake::new();
    let mut driver = open(&fake, Journal::in_memory().unwrap());
    fake.submit("1", Wants::Nothing);
    fake.submit("2", Wants::Other("TresPerSocket=gres:gpu:4 NumNodes=2".into()));
    fake.submit("3", gpus(9));
    driver.step(1.0).unwrap();
    let hand_over = |job: &str| Order::HandOver { job: job.into(), unbind: None };
    assert_eq!(fake.given(), ["1", "2", "3"].map(hand_over));
    fake.change("2", |job| {
        (job.stands, job.holds) = (Stands::Running, vec![held("gpu001", 3)]);
    });
    fake.submit("4", gpus(4));
    driver.step(2.0).unwrap();
    assert_eq!(fake.given(), [bind("4", &["gpu002"])]);
    assert_eq!(driver.scheduler.state.cluster.machines[0].foreign, 3);
    // Released by hand: it is Slurm's from then on.
    fake.submit("5", gpus(8));
    driver.step(3.0).unwrap();
    fake.change("5", |job| job.stands = Stands::Queued);
    driver.step(4.0).unwrap();
    assert!(driver.journal.about("5", 9).unwrap().iter().any(|s| s.text.contains("by hand")));
}

/// Resident memory of this process, in bytes.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Ended jobs are forgotten everywhere but in the journal, whose cache is bounded.
#[test]
fn memory_stays_flat_over_many_short_jobs() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::new();
    let mut driver = open(&fake, Journal::open(&dir.path().join("journal.redb")).unwrap());
    let mut now = 0.0;
    let mut key = 0;
    let mut run = |jobs: u32| {
        for _ in 0..jobs / 8 {
            let keys: Vec<String> = (0..8).map(|k| (key + k).to_string()).collect();
            key += 8;
            keys.iter().for_each(|key| fake.submit(key, gpus(1)));
            for _ in 0..3 {
                now += 0.1;
                driver.step(now).unwrap();
            }
            assert!(keys.iter().all(|key| fake.stands(key) == Stands::Running));
            keys.iter().for_each(|key| {
                fake.change(key, |job| job.stands = Stands::Over(End::Finished));
            });
            now += 0.1;
            driver.step(now).unwrap();
            fake.0.borrow_mut().seen.jobs.clear();
            fake.given();
        }
        resident_bytes()
    };
    // By then the journal's cache is full.
    let before = run(8_000);
    let after = run(4_000);
    let grown = after.saturating_sub(before);
    assert!(grown < 1 << 20, "{grown} bytes over 4,000 jobs");
}

/// Looks that many times, a second apart.
fn looks(driver: &mut Driver<Fake>, from_s: f64, count: u32) {
    (0..count).for_each(|n| drop(driver.step(from_s + f64::from(n)).unwrap()));
}

fn said_of(driver: &Driver<Fake>, job: &str) -> String {
    let said = driver.journal.about(job, 99).unwrap();
    said.into_iter().map(|said| said.text).collect::<Vec<_>>().join("\n")
}

#[test]
fn what_somebody_holds_is_not_started_until_he_lets_it_go() {
    let fake = Fake::new();
    let mut driver = open(&fake, Journal::in_memory().unwrap());
    fake.submit("1", gpus(4));
    fake.change("1", |job| {
        (job.obstacle, job.reason) = (Obstacle::Hold, "JobHeldAdmin".into());
    });
    fake.submit("2", gpus(4));
    fake.change("2", |job| job.wish.hold = true);
    // Held by an administrator, and nothing that Hither could place: nobody's business.
    fake.submit("3", Wants::Nothing);
    fake.change("3", |job| job.obstacle = Obstacle::Hold);
    looks(&mut driver, 1.0, 5);
    assert_eq!(fake.given(), []);
    assert!(driver.memory.bars["1"].contains("is held (JobHeldAdmin)"));
    fake.change("1", |job| job.obstacle = Obstacle::None);
    fake.change("2", |job| job.wish.hold = false);
    looks(&mut driver, 10.0, 4);
    assert_eq!([fake.stands("1"), fake.stands("2")], [Stands::Running; 2]);
    assert_eq!(fake.stands("3"), Stands::Held);
}

#[test]
fn a_job_that_is_held_while_it_starts_stays_held() {
    let fake = Fake::new();
    let mut driver = open(&fake, Journal::in_memory().unwrap());
    fake.submit("1", gpus(4));
    looks(&mut driver, 1.0, 1);
    fake.0.borrow_mut().obeys = false;
    looks(&mut driver, 2.0, 1);
    // The release arrives, and before the engine starts the job its user holds it.
    fake.change("1", |job| (job.stands, job.required) = (Stands::Queued, vec!["gpu001".into()]));
    looks(&mut driver, 2.5, 1);
    fake.change("1", |job| job.stands = Stands::Held);
    fake.0.borrow_mut().obeys = true;
    fake.given();
    looks(&mut driver, 3.0, 5);
    assert_eq!((fake.given(), fake.stands("1")), (vec![], Stands::Held));
    assert!(driver.memory.bars["1"].contains("held by hand"), "{:?}", driver.memory.bars);
}

#[test]
fn a_release_by_hand_is_a_release_also_after_a_preemption() {
    let fake = Fake::new();
    let mut driver = open(&fake, Journal::in_memory().unwrap());
    fake.submit("1", gpus(8));
    fake.submit("2", gpus(8));
    looks(&mut driver, 1.0, 4);
    // The first has run before, was requeued, and waits held, still bound to where it was.
    fake.change("2", |job| {
        (job.restarts, job.required) = (1, vec!["gpu001".into(), "gpu002".into()]);
    });
    looks(&mut driver, 6.0, 1);
    fake.given();
    fake.change("2", |job| job.stands = Stands::Queued);
    looks(&mut driver, 7.0, 3);
    assert_eq!(fake.given(), [], "nobody holds it again");
    assert!(said_of(&driver, "2").contains("was released by hand: it is the engine's from now on"));
}

#[test]
fn a_limit_parks_all_whom_it_concerns_and_costs_nobody_else_a_gpu() {
    for tells in [true, false] {
        let fake = Fake::new();
        let mut driver = open(&fake, Journal::in_memory().unwrap());
        // Ada may have two GPUs at a time, Bob as many as he likes.
        let limit =
            Limit { scope: Scope::QosUser, of: "normal ada".into(), counts: Counts::Gpus, max: 2 };
        fake.0.borrow_mut().seen.limits = if tells { vec![limit] } else { Vec::new() };
        fake.0.borrow_mut().obeys = false;
        (0..6).for_each(|n| fake.submit(&n.to_string(), gpus(1)));
        ["7", "8"].iter().for_each(|job| {
            fake.submit(job, gpus(2));
            fake.change(job, |job| job.user = "bob".into());
        });
        let mut running = 0;
        for tenth in 0..100 {
            driver.step(f64::from(tenth) / 10.0).unwrap();
            for order in fake.given() {
                let mut world = fake.0.borrow_mut();
                let ada =
                    world.seen.jobs.values().filter(|j| j.user == "ada" && j.is_active()).count();
                let job = world.seen.jobs.get_mut(order.job()).unwrap();
                match order {
                    Order::Bind { nodes, .. } => job.required = nodes,
                    Order::Release { .. } if job.user == "ada" && ada >= 2 => {
                        job.stands = Stands::Queued;
                        job.obstacle = Obstacle::Limit(Scope::QosUser, Counts::Gpus);
                        job.reason = "QOSMaxGRESPerUser".into();
                    }
                    Order::Release { .. } => {
                        let gpus = job.gpus();
                        job.stands = Stands::Running;
                        job.holds = job.required.iter().map(|node| held(node, gpus)).collect();
                        running += 1;
                    }
                    Order::Hold { .. } => {
                        (job.stands, job.obstacle) = (Stands::Held, Obstacle::None)
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        assert_eq!(running, 4, "two of Ada's and both of Bob's, told: {tells}");
        assert_eq!([fake.stands("7"), fake.stands("8")], [Stands::Running; 2]);
        let parked = (0..6).filter(|n| driver.memory.bars.contains_key(&n.to_string())).count();
        assert_eq!(parked, 4);
        let refusals = driver.counters.refusals;
        assert_eq!(refusals == 0, tells, "{refusals} starts were tried in vain");
        // One ends: the next may start, and no try was counted against it.
        let ended =
            (0..6).map(|n| n.to_string()).find(|key| fake.stands(key) == Stands::Running).unwrap();
        fake.change(&ended, |job| {
            (job.stands, job.holds) = (Stands::Over(End::Finished), Vec::new());
        });
        fake.0.borrow_mut().obeys = true;
        looks(&mut driver, 11.0, 5);
        let runs = (0..6).filter(|n| fake.stands(&n.to_string()) == Stands::Running).count();
        assert_eq!(runs, 2);
    }
}

#[test]
fn a_start_that_the_cluster_refuses_is_no_try_and_success_forgets_tries() {
    let fake = Fake::new();
    let mut driver = open(&fake, Journal::in_memory().unwrap());
    fake.submit("1", gpus(4));
    for round in 0..6 {
        let at_s = 10.0 * f64::from(round);
        looks(&mut driver, at_s + 1.0, 1);
        fake.0.borrow_mut().obeys = false;
        looks(&mut driver, at_s + 3.0, 1);
        fake.change("1", |job| {
            (job.stands, job.obstacle) = (Stands::Queued, Obstacle::Cluster);
        });
        fake.0.borrow_mut().obeys = true;
        looks(&mut driver, at_s + 4.0, 1);
        fake.change("1", |job| job.obstacle = Obstacle::None);
        looks(&mut driver, at_s + 7.0, 2);
    }
    assert_eq!(driver.memory.attempts.left("1"), None);
    assert!(!fake.given().iter().any(|order| matches!(order, Order::HandOver { .. })));
}

#[test]
fn a_node_that_refused_a_job_is_not_offered_again_at_once() {
    let fake = Fake::new();
    let mut driver = open(&fake, Journal::in_memory().unwrap());
    fake.submit("1", gpus(4));
    looks(&mut driver, 1.0, 1);
    assert_eq!(fake.given(), [bind("1", &["gpu001"])]);
    fake.0.borrow_mut().obeys = false;
    looks(&mut driver, 2.0, 1);
    fake.change("1", |job| {
        (job.stands, job.obstacle) = (Stands::Queued, Obstacle::Place);
        job.required = vec!["gpu001".into()];
    });
    fake.0.borrow_mut().obeys = true;
    fake.given();
    looks(&mut driver, 4.0, 6);
    assert!(fake.given().contains(&bind("1", &["gpu002"])));
    assert_eq!(fake.stands("1"), Stands::Running);
}

#[test]
fn cpus_and_memory_that_are_gone_are_not_offered() {
    let fake = Fake::new();
    let host = Host { cpus: 16, memory_mb: 64_000 };
    for node in fake.0.borrow_mut().seen.nodes.values_mut() {
        node.host = host;
    }
    let mut driver = open(&fake, Journal::in_memory().unwrap());
    let wants = |cpus| {
        let split = Split { host: Host { cpus, memory_mb: 1024 }, ..Split::even(1) };
        Wants::Gpus { count: 1, gpu_type: None, split }
    };
    // All CPUs of one node go to a job of one GPU; the next goes elsewhere, though there are GPUs.
    fake.submit("1", wants(16));
    looks(&mut driver, 1.0, 1);
    fake.submit("2", wants(1));
    looks(&mut driver, 2.0, 1);
    let given = fake.given();
    let nodes = |job: &str| {
        given.iter().find_map(|order| match order {
            Order::Bind { job: bound, nodes, .. } if bound == job => Some(nodes.clone()),
            _ => None,
        })
    };
    assert!(nodes("1").is_some() && nodes("2").is_some() && nodes("1") != nodes("2"), "{given:?}");
    // More than any node has: the engine's own scheduler may know what to do.
    fake.submit("3", wants(17));
    looks(&mut driver, 3.0, 1);
    assert!(fake.given().contains(&Order::HandOver { job: "3".into(), unbind: None }));
    assert!(driver.memory.bars["3"].contains("no part of the cluster holds"));
}

#[test]
fn a_job_that_cannot_be_stopped_is_nobodys_victim_a_second_time() {
    let fake = Fake::new();
    let mut driver = open(&fake, Journal::in_memory().unwrap());
    fake.submit("1", gpus(8));
    looks(&mut driver, 0.0, 3);
    fake.submit("2", gpus(8));
    let stops = |fake: &Fake| {
        fake.given().iter().filter(|order| matches!(order, Order::Requeue { .. })).count()
    };
    // The engine says nothing and does nothing.
    fake.0.borrow_mut().obeys = false;
    let mut asked = 0;
    for n in 0..400 {
        driver.step(6000.0 + 5.0 * f64::from(n)).unwrap();
        asked += stops(&fake);
    }
    assert!(asked > 0, "it was asked for");
    assert!(!driver.scheduler.state.job(0).job.terms.preemptible);
    for n in 0..400 {
        driver.step(9000.0 + 5.0 * f64::from(n)).unwrap();
    }
    assert_eq!(stops(&fake), 0);
}

#[test]
fn a_job_that_never_leaves_does_not_block_its_successor() {
    let fake = Fake::new();
    let mut driver = open(&fake, Journal::in_memory().unwrap());
    fake.submit("1", gpus(4));
    fake.submit("2", gpus(4));
    looks(&mut driver, 0.0, 3);
    fake.submit("3", gpus(4));
    // One of the two is asked to go, and hangs in the engine's hands.
    fake.0.borrow_mut().obeys = false;
    let mut victim = None;
    for n in 0..20 {
        driver.step(4000.0 + 400.0 * f64::from(n)).unwrap();
        let in_flight = driver.scheduler.state.decisions_in_flight();
        victim = in_flight.iter().find_map(|d| match d.action {
            hither_sched::event::Action::Stop { job, .. } => Some((job + 1).to_string()),
            _ => None,
        });
        if victim.is_some() {
            break;
        }
    }
    let victim = victim.expect("somebody makes room");
    fake.change(&victim, |job| job.stands = Stands::Leaving);
    let other = if victim == "1" { "2" } else { "1" };
    fake.0.borrow_mut().obeys = true;
    looks(&mut driver, 13_000.0, 1);
    fake.change(other, |job| (job.stands, job.holds) = (Stands::Over(End::Finished), Vec::new()));
    for n in 0..60 {
        driver.step(13_001.0 + 5.0 * f64::from(n)).unwrap();
    }
    assert_eq!(fake.stands("3"), Stands::Running, "{}", said_of(&driver, "3"));
    assert_eq!(fake.stands(&victim), Stands::Leaving);
}

#[test]
fn a_report_counts_once_and_a_run_that_ends_takes_its_reports_along() {
    let fake = Fake::new();
    let mut driver = open(&fake, Journal::in_memory().unwrap());
    fake.submit("1", gpus(8));
    looks(&mut driver, 0.0, 3);
    let report = |done: f64, at_s: f64| {
        fake.change("1", |job| (job.wish.done, job.wish.at_s) = (Some(done), Some(at_s)));
    };
    report(10.0, 10.0);
    looks(&mut driver, 10.0, 1);
    report(20.0, 20.0);
    looks(&mut driver, 20.0, 10);
    let rate = |driver: &Driver<Fake>| driver.scheduler.state.job(0).run().unwrap().pace.rate;
    assert_eq!(rate(&driver), 1.0);
    // Requeued: two hours later it runs again, and its first report says nothing of its pace.
    fake.change("1", |job| (job.stands, job.restarts, job.holds) = (Stands::Held, 1, Vec::new()));
    looks(&mut driver, 40.0, 1);
    for n in 0..6 {
        driver.step(7200.0 + f64::from(n)).unwrap();
    }
    assert_eq!(fake.stands("1"), Stands::Running);
    report(30.0, 7300.0);
    looks(&mut driver, 7300.0, 3);
    assert_eq!(rate(&driver), 0.0, "nobody knows yet");
    report(40.0, 7302.0);
    looks(&mut driver, 7303.0, 1);
    assert_eq!(rate(&driver), 5.0);
}

#[test]
fn one_flawed_or_vanished_job_keeps_nobody_out() {
    let fake = Fake::new();
    let mut driver = open(&fake, Journal::in_memory().unwrap());
    fake.submit("1", Wants::Gpus { count: 5, gpu_type: None, split: Split::even(2) });
    fake.submit("2", gpus(4));
    looks(&mut driver, 1.0, 3);
    assert_eq!(fake.stands("2"), Stands::Running);
    assert!(fake.given().contains(&Order::HandOver { job: "1".into(), unbind: None }));
    // Both nodes leave the cluster: what fits nowhere any more is not held for ever.
    fake.submit("3", gpus(8));
    looks(&mut driver, 5.0, 1);
    fake.0.borrow_mut().seen.nodes.remove("gpu002");
    looks(&mut driver, 6.0, 4);
    assert_eq!(fake.stands("3"), Stands::Queued, "{}", said_of(&driver, "3"));
    assert!(said_of(&driver, "3").contains("no part of the cluster holds"));
}

#[test]
fn nodes_racks_and_switches_change_while_it_runs() {
    let fake = Fake::new();
    let mut driver = open(&fake, Journal::in_memory().unwrap());
    fake.submit("1", gpus(8));
    looks(&mut driver, 0.0, 3);
    assert_eq!(driver.racks.len(), 1);
    // A second rack with two machines; what runs goes on.
    let mut topology = Topology::uniform(2, 2, 4);
    fake.0.borrow_mut().topology = topology.clone();
    for name in ["gpu003", "gpu004"] {
        let node = fake.0.borrow().seen.nodes["gpu001"].clone();
        fake.0.borrow_mut().seen.nodes.insert(name.into(), node);
    }
    fake.submit("2", gpus(8));
    looks(&mut driver, 5.0, 3);
    assert_eq!([fake.stands("1"), fake.stands("2")], [Stands::Running; 2]);
    assert_eq!((driver.racks.len(), driver.scheduler.state.running.len()), (2, 2));
    // All move into one rack: a job that spanned two is now in one.
    topology.levels[1].places.truncate(1);
    topology.machines.iter_mut().for_each(|machine| machine.parent = 0);
    fake.0.borrow_mut().topology = topology;
    looks(&mut driver, 100.0, 1);
    assert_eq!(driver.racks.len(), 1);
    let tier =
        |driver: &Driver<Fake>, id| driver.scheduler.state.job(id).run().unwrap().placement.tier;
    assert_eq!([tier(&driver, 0), tier(&driver, 1)].map(|tier| tier.level()), [1, 1]);
    assert!(replay::replay(&driver.journal, |_| {}).unwrap().differences.is_empty());
}

#[test]
fn a_node_that_the_network_does_not_know_yet_stops_nobody() {
    let fake = Fake::new();
    let mut driver = open(&fake, Journal::in_memory().unwrap());
    let node = fake.0.borrow().seen.nodes["gpu001"].clone();
    fake.0.borrow_mut().seen.nodes.insert("gpu003".into(), node);
    fake.0.borrow_mut().is_broken = true;
    fake.submit("1", gpus(8));
    let mut said = Vec::new();
    for n in 0..5 {
        said.extend(driver.step(f64::from(n)).unwrap().said);
    }
    assert_eq!(fake.stands("1"), Stands::Running);
    let notes: Vec<&str> = said.iter().map(|said| said.text.as_str()).collect();
    let about = notes.iter().filter(|note| note.contains("topology.conf")).count();
    assert_eq!(about, 1, "{notes:?}");
    // It is there: so is the node.
    fake.0.borrow_mut().is_broken = false;
    fake.0.borrow_mut().topology = Topology::uniform(1, 3, 4);
    fake.submit("2", gpus(4));
    looks(&mut driver, 10.0, 3);
    assert_eq!(fake.stands("2"), Stands::Running);
}

#[test]
fn another_policy_and_another_version_take_over_what_runs() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal.redb");
    let fake = Fake::new();
    ["1", "2", "3"].iter().for_each(|job| fake.submit(job, gpus(4)));
    let mut driver = open_as("dally", &fake, Journal::open(&path).unwrap());
    looks(&mut driver, 0.0, 3);
    drop(driver);
    for policy in ["fifo", "las", "dally"] {
        let mut driver = open_as(policy, &fake, Journal::open(&path).unwrap());
        looks(&mut driver, 10.0, 1);
        assert_eq!(
            (driver.setup.policy.as_str(), driver.scheduler.state.running.len()),
            (policy, 2)
        );
        assert_eq!(driver.scheduler.state.line.len(), 1);
    }
    fake.change("1", |job| job.stands = Stands::Over(End::Finished));
    let mut driver = open_as("fifo", &fake, Journal::open(&path).unwrap());
    looks(&mut driver, 20.0, 4);
    assert_eq!(fake.stands("3"), Stands::Running);
}

/// Writes `data/journal-of-0.0.9.json`, as version 0.0.9 would have written it had it chosen the other machine:
/// `HITHER_PIN=write` makes it anew.
#[test]
fn the_journal_of_another_version_is_as_it_was_made() {
    if std::env::var_os("HITHER_PIN").is_none_or(|pin| pin != "write") {
        return;
    }
    let fake = Fake::new();
    let mut driver = open(&fake, Journal::in_memory().unwrap());
    fake.submit("1", gpus(4));
    driver.step(1.0).unwrap();
    let (first, mut segment) = driver.journal.last_segment().unwrap().unwrap();
    segment.setup.version = "0.0.9".into();
    let turns = driver.journal.turns(first, driver.journal.next()).unwrap();
    let mut turns: Vec<_> = turns.into_iter().map(|(_, turn)| turn).collect();
    for decision in turns.iter_mut().flat_map(|turn| &mut turn.decisions) {
        if let hither_sched::event::Action::Start { placement, .. } = &mut decision.action {
            Arc::make_mut(placement).slots[0].machine = 1;
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/journal-of-0.0.9.json");
    std::fs::write(path, serde_json::to_string_pretty(&(segment, turns)).unwrap()).unwrap();
}

/// A journal that another version of the program wrote, which decided otherwise than this one would.
#[test]
fn a_journal_of_another_version_opens_and_its_decisions_stand() {
    let text = include_str!("data/journal-of-0.0.9.json");
    let (segment, turns): (hither_live::journal::Segment, Vec<hither_live::journal::Turn>) =
        serde_json::from_str(text).unwrap();
    assert_eq!(segment.setup.version, "0.0.9");
    let mut journal = Journal::in_memory().unwrap();
    journal.begin(&segment, 0.0).unwrap();
    turns.iter().for_each(|turn| journal.append(turn).unwrap());
    // Replayed, it shows where this version differs.
    let replayed = replay::replay(&journal, |_| {}).unwrap();
    assert_eq!(replayed.differences.len(), 1, "{:?}", replayed.differences);
    assert!(replayed.differences[0].contains("by version 0.0.9"));
    // Opened, it goes on from what was decided: job 1 was sent to the second machine.
    let fake = Fake::new();
    fake.submit("1", gpus(4));
    fake.change("1", |job| {
        (job.stands, job.required) = (Stands::Running, vec!["gpu002".into()]);
        job.holds = vec![held("gpu002", 4)];
    });
    let mut driver = open(&fake, journal);
    looks(&mut driver, 10.0, 2);
    let placement = driver.scheduler.state.job(0).run().unwrap().placement.clone();
    assert_eq!(driver.places.name(placement.slots[0].machine), "gpu002");
    assert_eq!((fake.given(), driver.counters.refusals), (vec![], 0));
    assert_eq!(driver.setup.version, "0.2.0");
}

#[test]
fn a_clock_that_was_far_ahead_does_not_stop_the_scheduler() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal.redb");
    let fake = Fake::new();
    let mut driver = open(&fake, Journal::open(&path).unwrap());
    fake.submit("1", gpus(4));
    looks(&mut driver, 1e9, 3);
    drop(driver);
    // The clock is right again, thirty years earlier.
    let mut driver = open(&fake, Journal::open(&path).unwrap());
    assert!((driver.now(0.0) - driver.scheduler.state.now).abs() < 1.0);
    fake.submit("2", gpus(4));
    looks(&mut driver, 10.0, 3);
    assert_eq!(fake.stands("2"), Stands::Running);
    let before = driver.scheduler.state.now;
    driver.shift_clock(1e6, 1e6 - 12.0).unwrap();
    looks(&mut driver, 1e6, 1);
    assert!(driver.scheduler.state.now - before < 60.0);
}

#[test]
fn a_timer_that_never_runs_out_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal.redb");
    let fake = Fake::new();
    let options = "[dally]\nmachine_s = inf\nrack_s = inf\n";
    let reopen = |at_s: f64| {
        let setup = Setup {
            policy: "dally".into(),
            settings: options.into(),
            partitions: vec!["gpu".into()],
            cluster: String::new(),
            epoch_s: 0.0,
            version: String::new(),
        };
        let options = Options { limits: Limits::default(), act: true, keep_s: 1e9 };
        let (topology, journal) = (Topology::uniform(1, 2, 4), Journal::open(&path).unwrap());
        Driver::open(fake.clone(), journal, &topology, setup, Library::builtin(), options, at_s)
    };
    let mut driver = reopen(0.0).unwrap();
    // Three GPUs of each machine are taken: a job of unknown cost holds out for one machine, for ever.
    ["1", "2"].iter().for_each(|job| fake.submit(job, gpus(3)));
    looks(&mut driver, 0.0, 3);
    fake.submit("3", gpus(2));
    looks(&mut driver, 10.0, 2);
    drop(driver);
    let mut driver = reopen(20.0).unwrap();
    looks(&mut driver, 20.0, 1);
    assert_eq!(driver.scheduler.state.line.len(), 1);
}

/// A segment begins without reading those before it, and forgets old ones by their turns alone.
#[test]
fn a_hundred_segments_cost_no_more_than_one() {
    let mut journal = Journal::in_memory().unwrap();
    let fake = Fake::new();
    let driver = open(&fake, Journal::in_memory().unwrap());
    let segment = driver.journal.last_segment().unwrap().unwrap().1;
    for n in 0..100 {
        let at_s = f64::from(n);
        let said =
            [("1", "starts"), (if n < 50 { "old" } else { "new" }, "waits")].map(|(job, text)| {
                hither_live::journal::Said { job: job.into(), at_s, text: text.into() }
            });
        let segment = hither_live::journal::Segment { at_s, ..segment.clone() };
        journal.begin(&segment, at_s - 20.0).unwrap();
        let turn =
            hither_live::journal::Turn { now: at_s, said: said.to_vec(), ..Default::default() };
        journal.append(&turn).unwrap();
    }
    assert_eq!(journal.segment_starts().unwrap().len(), 21);
    assert_eq!(journal.about("1", 999).unwrap().len(), 21);
    assert_eq!(journal.about("old", 999).unwrap(), []);
    assert_eq!(journal.about("new", 999).unwrap().len(), 21);
}

#[test]
fn a_record_that_is_read_while_the_job_ends_says_nothing_of_its_place() {
    let fake = Fake::new();
    let mut driver = open(&fake, Journal::in_memory().unwrap());
    fake.submit("1", gpus(4));
    looks(&mut driver, 0.0, 3);
    // The node is still there, its GPUs are not.
    fake.change("1", |job| job.holds.iter_mut().for_each(|held| held.gpus = 0));
    looks(&mut driver, 5.0, 2);
    assert_eq!(driver.scheduler.state.running.len(), 1);
    assert!(!said_of(&driver, "1").contains("other GPUs"));
    fake.change("1", |job| job.stands = Stands::Over(End::Finished));
    looks(&mut driver, 9.0, 1);
    assert_eq!(driver.scheduler.state.unfinished, 0);
}

#[test]
fn a_job_that_can_never_run_goes_back_to_the_engine_with_its_reason() {
    let fake = Fake::new();
    let mut driver = open(&fake, Journal::in_memory().unwrap());
    fake.submit("1", gpus(4));
    looks(&mut driver, 1.0, 1);
    fake.0.borrow_mut().obeys = false;
    looks(&mut driver, 2.0, 1);
    fake.change("1", |job| {
        (job.stands, job.required) = (Stands::Queued, vec!["gpu001".into()]);
        (job.obstacle, job.reason) = (Obstacle::Never, "PartitionTimeLimit".into());
    });
    fake.0.borrow_mut().obeys = true;
    looks(&mut driver, 3.0, 1);
    // Held again, it looks like any other.
    fake.change("1", |job| job.obstacle = Obstacle::None);
    fake.given();
    looks(&mut driver, 4.0, 3);
    let hand_over = Order::HandOver { job: "1".into(), unbind: Some(1) };
    assert_eq!(fake.given(), [hand_over]);
    assert!(
        said_of(&driver, "1").contains("is left to the engine: cannot run: PartitionTimeLimit")
    );
}
