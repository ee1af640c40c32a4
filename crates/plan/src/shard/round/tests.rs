use std::collections::BTreeMap;

use jiff::SignedDuration;
use proptest::prelude::*;

use super::*;
use crate::shard::{
    group::Blueprint,
    instance::{Agent, MachineStatus},
};

const MINUTE: Duration = Duration::from_mins(1);

fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

fn ago(seconds: i64) -> Timestamp {
    now() - SignedDuration::from_secs(seconds)
}

fn settings() -> Settings {
    Settings {
        health_check_interval: MINUTE,
        registration_timeout: 5 * MINUTE,
        retention: 30 * MINUTE,
        drain_timeout: 5 * MINUTE,
        eligible_age: None,
        forced_age: None,
        ondemand_age: None,
    }
}

fn group(size: i32) -> Group {
    Group {
        key: "web".to_owned(),
        tenant: "default".to_owned(),
        template: "web".to_owned(),
        kind: "web".to_owned(),
        size,
        instance_type: String::new(),
        subnet_pool: "pool".to_owned(),
        vars: BTreeMap::new(),
        is_static: false,
        drain_timeout: 5 * MINUTE,
        remove_first: Vec::new(),
        replace: BTreeSet::new(),
        blueprint: Blueprint { hash: "h".to_owned(), ..Blueprint::default() },
    }
}

/// A healthy instance of the hour before; smaller numbers are older.
fn member(number: u8) -> Member {
    let created_at = ago(3600 - i64::from(number));
    let id = InstanceId::new("web", u128::from(number));
    let names = ("default", "web", "web");
    let blueprint = Blueprint { hash: "h".to_owned(), ..Blueprint::default() };
    let mut record = Record::new(id, names, &blueprint, "s1", created_at);
    record.machine = Some(MachineRef { provider_id: format!("i-{number}"), launched_at: created_at });
    let machine = Machine::There { provider_id: format!("i-{number}"), status: MachineStatus::Running };
    let agent = Agent { registered: true, last_seen: ago(10), reported: true, notice: None };
    Member { record, machine, agent, acknowledged: false, retry_at: None, known_for: 60 * MINUTE }
}

fn with(number: u8, change: impl FnOnce(&mut Member)) -> Member {
    let mut member = member(number);
    change(&mut member);
    member
}

fn silent(member: &mut Member) {
    member.agent.last_seen = ago(180);
}

fn down(member: &mut Member) {
    let provider_id = member.record.provider_id().to_owned();
    member.machine = Machine::There { provider_id, status: MachineStatus::Stopped };
}

fn draining(member: &mut Member) {
    let delete_at = now() + 4 * MINUTE;
    member.record.leaving = Some(Leaving { reason: Reason::ScaleDown, since: ago(60), delete_at });
}

fn pending(member: &mut Member) {
    member.record.machine = None;
    member.record.created_at = ago(10);
    member.machine = Machine::Absent;
    member.agent.registered = false;
}

fn starting(member: &mut Member) {
    member.record.machine.as_mut().unwrap().launched_at = ago(10);
    member.agent.registered = false;
}

/// As the leader after the one that knew it sees it: it has not reported yet.
fn unheard(member: &mut Member) {
    member.agent.last_seen = now();
    member.agent.reported = false;
}

fn replacing(number: u128, reason: Reason) -> impl Fn(&mut Member) {
    move |member| member.record.replaces = Some(Replaces { id: InstanceId::new("web", number), reason })
}

/// A world that carries plans out.
struct World {
    group: Option<Group>,
    members: Vec<Member>,
    settings: Settings,
    next: u128,
    unreadable: usize,
}

impl World {
    fn new(group: Option<Group>, members: Vec<Member>) -> Self {
        Self { group, members, settings: settings(), next: 1000, unreadable: 0 }
    }

    fn plan(&self, at: Timestamp) -> Round {
        let ids: Vec<u128> = (self.next..self.next + 200).collect();
        let subnets = [Subnet { id: "s1".to_owned(), free: None }];
        let observed = Observed {
            group: self.group.as_ref(),
            members: &self.members,
            subnets: &subnets,
            ids: &ids,
            create_after: None,
            unreadable: self.unreadable,
        };
        plan(observed, &self.settings, at)
    }

    fn find(&mut self, id: &InstanceId) -> &mut Member {
        self.members.iter_mut().find(|member| member.record.id == *id).expect("a member")
    }

    fn apply(&mut self, action: &Action, at: Timestamp) {
        let machine = |id: &InstanceId| MachineRef { provider_id: format!("i-{id}"), launched_at: at };
        let there = |id: &InstanceId| Machine::There { provider_id: format!("i-{id}"), status: MachineStatus::Running };
        match action {
            Action::Create(record) => {
                self.next += 1;
                let mut record = (**record).clone();
                record.machine = Some(machine(&record.id));
                let agent = Agent { registered: false, last_seen: at, reported: false, notice: None };
                let machine = there(&record.id);
                let known_for = 60 * MINUTE;
                self.members.push(Member { record, machine, agent, acknowledged: false, retry_at: None, known_for });
            }
            Action::Launch(id) => {
                let member = self.find(id);
                member.record.machine = Some(machine(id));
                member.machine = there(id);
            }
            Action::Link(id, machine) => self.find(id).record.machine = Some(machine.clone()),
            Action::Drain(id, leaving) => self.find(id).record.leaving = Some(leaving.clone()),
            Action::Delete(id, leaving) => {
                let member = self.find(id);
                member.record.leaving.get_or_insert_with(|| leaving.clone());
                member.record.deleted_at = Some(at);
            }
            Action::Forget(id) => self.members.retain(|member| member.record.id != *id),
        }
    }

    /// One round; planning again must yield nothing.
    fn round(&mut self, at: Timestamp) -> Vec<Action> {
        let actions = self.plan(at).actions;
        for action in &actions {
            self.apply(action, at);
        }
        assert_eq!(self.plan(at).actions, [], "planning again yields nothing after {actions:?}");
        actions
    }

    fn register(&mut self, at: Timestamp) {
        for member in &mut self.members {
            report(member, at);
        }
    }

    fn living(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.record.deleted_at.is_none())
    }

    fn staying(&self) -> usize {
        self.living().filter(|member| !member.record.on_demand && member.record.leaving.is_none()).count()
    }
}

/// Whether another leader began to replace it because it was silent.
fn found_silent(world: &World, member: &Member) -> bool {
    let staying = world.living().filter(|other| other.record.leaving.is_none());
    let mut replaced = staying.filter_map(|other| other.record.replaces.as_ref());
    replaced.any(|replaces| replaces.id == member.record.id && replaces.reason == Reason::Unhealthy)
}

fn report(member: &mut Member, at: Timestamp) {
    member.agent = Agent { registered: true, last_seen: at, reported: true, notice: member.agent.notice };
}

/// Actions as short text: `create`, `drain 1 scale-down`.
fn text(actions: &[Action]) -> Vec<String> {
    let number = |id: &InstanceId| {
        (0..255).find(|number| *id == InstanceId::new("web", *number)).map_or("new".to_owned(), |n| n.to_string())
    };
    let line = |action: &Action| match action {
        Action::Create(_) => "create".to_owned(),
        Action::Launch(id) => format!("launch {}", number(id)),
        Action::Link(id, machine) => format!("link {} {}", number(id), machine.provider_id),
        Action::Drain(id, leaving) => format!("drain {} {}", number(id), leaving.reason.as_str()),
        Action::Delete(id, leaving) => format!("delete {} {}", number(id), leaving.reason.as_str()),
        Action::Forget(id) => format!("forget {}", number(id)),
    };
    actions.iter().map(line).collect()
}

#[track_caller]
fn check(group: Option<Group>, members: Vec<Member>, expected: &[&str]) -> World {
    check_with(group, members, settings(), expected)
}

#[track_caller]
fn check_with(group: Option<Group>, members: Vec<Member>, settings: Settings, expected: &[&str]) -> World {
    let mut world = World::new(group, members);
    world.settings = settings;
    assert_eq!(text(&world.round(now())), expected);
    world
}

#[test]
fn a_group_grows_and_shrinks_to_its_size() {
    check(Some(group(2)), vec![], &["create", "create"]);
    check(Some(group(2)), vec![member(1), member(2)], &[]);
    check(Some(group(1)), vec![member(1), member(2), member(3)], &["drain 1 scale-down", "drain 2 scale-down"]);
    check(None, vec![member(1)], &["drain 1 scale-down"]);
    check(Some(group(0)), vec![with(1, draining), member(2)], &["drain 2 scale-down"]);
}

#[test]
fn a85_victims_are_marked_then_unhealthy_then_oldest() {
    let marked = Group {
        remove_first: vec![InstanceId::new("web", 3), InstanceId::new("web", 2), InstanceId::new("web", 99)],
        ..group(1)
    };
    let four = || vec![member(1), member(2), member(3), member(4)];
    check(Some(marked), four(), &["drain 3 scale-down", "drain 2 scale-down", "drain 1 scale-down"]);
    check(
        Some(group(1)),
        vec![member(1), with(2, starting), with(3, silent)],
        &["drain 3 scale-down", "drain 2 scale-down"],
    );
    check(Some(group(1)), vec![member(1), with(2, pending)], &["delete 2 scale-down"]);
}

#[test]
fn a85_draining_instances_do_not_count() {
    check(Some(group(2)), vec![member(1), with(2, draining)], &["create"]);
    check(Some(group(1)), vec![member(1), with(2, draining)], &[]);
}

#[test]
fn a73_no_drain_time_means_no_notice_and_time_ends_a_drain_without_acknowledgement() {
    let at_once = Group { drain_timeout: Duration::ZERO, ..group(0) };
    check(Some(at_once), vec![member(1)], &["delete 1 scale-down"]);
    let over = with(1, |member| {
        draining(member);
        member.record.leaving.as_mut().unwrap().delete_at = now();
    });
    check(Some(group(0)), vec![over], &["delete 1 scale-down"]);
    check(Some(group(0)), vec![with(1, draining)], &[]);
}

#[test]
fn an_acknowledged_instance_goes_at_once() {
    let acknowledged = with(1, |member| {
        draining(member);
        member.acknowledged = true;
    });
    check(Some(group(0)), vec![acknowledged], &["delete 1 scale-down"]);
    check(Some(group(1)), vec![with(1, |member| member.acknowledged = true)], &["delete 1 request", "create"]);
}

#[test]
fn a74_a_machine_that_does_not_run_is_replaced_without_drain() {
    check(Some(group(1)), vec![with(1, down)], &["delete 1 unhealthy", "create"]);
    check(Some(group(1)), vec![with(1, |member| member.machine = Machine::Absent)], &["delete 1 unhealthy", "create"]);
    let both = with(1, |member| {
        draining(member);
        down(member);
    });
    check(Some(group(0)), vec![both], &["delete 1 scale-down"]);
}

#[test]
fn unknown_is_not_absent() {
    check(Some(group(1)), vec![with(1, |member| member.machine = Machine::Unknown)], &[]);
    let unseen = with(1, |member| {
        member.machine = Machine::Unknown;
        silent(member);
    });
    check(Some(group(1)), vec![unseen], &[]);
    let pending = with(1, |member| {
        pending(member);
        member.record.created_at = ago(3600);
        member.machine = Machine::Unknown;
    });
    check(Some(group(1)), vec![pending], &[]);
}

#[test]
fn a75_a_silent_instance_is_replaced_first_and_drained_then() {
    let mut world = check(Some(group(2)), vec![with(1, silent), member(2)], &["create"]);
    assert_eq!(text(&world.round(now())), [""; 0], "the replacement is not there yet");
    let later = now() + MINUTE;
    world.members.iter_mut().skip(1).for_each(|member| report(member, later));
    assert_eq!(text(&world.round(later)), ["drain 1 unhealthy"]);
    assert_eq!(world.staying(), 2);
}

#[test]
fn all_silent_instances_are_replaced_one_after_the_other() {
    let mut world = World::new(Some(group(3)), vec![with(1, silent), with(2, silent), with(3, silent)]);
    assert_eq!(text(&world.round(now())), ["create"]);
    let mut at = now();
    for expected in [&["drain 1 unhealthy", "create"][..], &["drain 2 unhealthy", "create"], &["drain 3 unhealthy"]] {
        at += MINUTE;
        world.members.iter_mut().skip(3).for_each(|member| report(member, at));
        assert_eq!(text(&world.round(at)), expected);
    }
}

#[test]
fn a85_a_replacement_under_way_costs_no_healthy_instance() {
    let members = vec![with(1, silent), member(2), with(3, starting)];
    check(Some(group(2)), members.clone(), &[]);
    check(Some(group(1)), members, &["drain 1 scale-down", "drain 3 scale-down"]);
}

#[test]
fn a85_a_replacement_that_another_leader_began_is_finished() {
    let begun = |reason| {
        with(3, |member| {
            starting(member);
            replacing(1, reason)(member);
        })
    };
    let members = vec![with(1, unheard), with(2, unheard), begun(Reason::Unhealthy)];
    let mut world = check(Some(group(2)), members.clone(), &[]);
    world.members.iter_mut().skip(1).for_each(|member| report(member, now()));
    assert_eq!(text(&world.round(now())), ["drain 1 unhealthy"], "and no other is made");
    check(Some(group(1)), members.clone(), &["drain 1 scale-down", "drain 3 scale-down"]);
    check(Some(group(3)), members.clone(), &["create"]);
    let recovered = with(1, |member| report(member, now()));
    check(Some(group(2)), vec![recovered, members[1].clone(), members[2].clone()], &["drain 3 scale-down"]);
    let unseen = with(1, |member| {
        unheard(member);
        member.machine = Machine::Unknown;
    });
    check(Some(group(2)), vec![unseen, members[1].clone(), members[2].clone()], &["drain 3 scale-down"]);
    // What was begun while nothing drained goes on when something drains.
    let aged = Settings { eligible_age: Some(30 * MINUTE), ..settings() };
    let ready = with(3, |member| {
        member.record.created_at = ago(60);
        replacing(1, Reason::EligibleExpiry)(member);
    });
    let members = vec![member(1), member(2), ready, with(4, draining)];
    check_with(Some(group(2)), members, aged, &["drain 1 eligible-expiry"]);
    let drifted = with(1, |member| member.record.hash = "old".to_owned());
    check(Some(group(1)), vec![drifted.clone(), begun(Reason::ConfigDrift), with(4, draining)], &[]);
    // Begun, given up since, and begun again.
    let given_up = with(3, |member| {
        replacing(1, Reason::ConfigDrift)(member);
        draining(member);
        member.record.deleted_at = Some(ago(1));
    });
    let world = check(Some(group(1)), vec![drifted, given_up], &["create"]);
    let first = InstanceId::new("web", 1);
    assert_eq!(world.members[2].record.replaces, Some(Replaces { id: first, reason: Reason::ConfigDrift }));
}

#[test]
fn what_is_urgent_goes_before_a_replacement_that_was_begun() {
    let drifted = with(2, |member| member.record.hash = "old".to_owned());
    let members = vec![with(1, silent), drifted, with(3, replacing(2, Reason::ConfigDrift))];
    check(Some(group(2)), members, &["drain 1 unhealthy", "create"]);
}

#[test]
fn what_the_size_asks_for_is_made_before_a_replacement() {
    let world = check(Some(group(3)), vec![with(1, silent)], &["create", "create", "create"]);
    let replaces: Vec<_> = world.members.iter().map(|member| member.record.replaces_id()).collect();
    assert_eq!(replaces, [None, None, None, Some(&InstanceId::new("web", 1))]);
}

#[test]
fn a76_a_spot_notice_drains_no_longer_than_the_machine_lives() {
    let noticed = |deadline: Option<Timestamp>| with(1, |member| member.agent.notice = Some(deadline));
    let end = |world: &World| world.members[0].record.leaving.as_ref().unwrap().delete_at;
    let expected = ["drain 1 spot-terminating", "create"];
    let world = check(Some(group(1)), vec![noticed(Some(now() + 2 * MINUTE))], &expected);
    assert_eq!(end(&world), now() + 2 * MINUTE);
    assert_eq!(end(&check(Some(group(1)), vec![noticed(None)], &expected)), now() + 5 * MINUTE);
    assert_eq!(end(&check(Some(group(1)), vec![noticed(Some(now() + 9 * MINUTE))], &expected)), now() + 5 * MINUTE);
    check(Some(group(1)), vec![noticed(Some(ago(1)))], &["delete 1 spot-terminating", "create"]);
    let shortened = with(1, |member| {
        draining(member);
        member.agent.notice = Some(Some(now() + MINUTE));
    });
    let world = check(Some(group(0)), vec![shortened], &["drain 1 scale-down"]);
    assert_eq!(end(&world), now() + MINUTE);
    let hardly = with(1, |member| {
        draining(member);
        member.agent.notice = Some(Some(now() + 4 * MINUTE - SHORTER + Duration::from_nanos(1)));
    });
    check(Some(group(0)), vec![hardly], &[]);
    let taken = with(1, |member| {
        member.agent.notice = Some(None);
        down(member);
    });
    check(Some(group(1)), vec![taken], &["delete 1 preemption", "create"]);
}

#[test]
fn a77_expiry_replaces_the_oldest_and_on_demand_instances_only_leave() {
    let aged = Settings {
        eligible_age: Some(30 * MINUTE),
        forced_age: Some(120 * MINUTE),
        ondemand_age: Some(30 * MINUTE),
        ..settings()
    };
    let mut world = check_with(Some(group(2)), vec![member(1), member(2)], aged.clone(), &["create"]);
    world.register(now());
    assert_eq!(text(&world.round(now())), ["drain 1 eligible-expiry"]);
    check_with(Some(group(1)), vec![member(1), with(2, draining)], aged.clone(), &[]);
    let forced = with(1, |member| member.record.created_at = ago(3 * 3600));
    check_with(Some(group(1)), vec![forced, with(2, draining)], aged.clone(), &["create"]);
    let on_demand = with(1, |member| member.record.on_demand = true);
    check_with(Some(group(0)), vec![on_demand.clone()], aged, &["drain 1 ondemand-expiry"]);
    check(Some(group(1)), vec![on_demand, member(2)], &[]);
    let sick = with(1, |member| {
        member.record.on_demand = true;
        silent(member);
    });
    check(Some(group(0)), vec![sick], &["drain 1 unhealthy"]);
}

/// A leader whose wall clock is a day ahead until it is set: it has just begun, and everything looks old.
#[test]
fn a77_what_only_the_wall_clock_calls_old_stays_until_this_server_has_known_it_for_a_while() {
    let aged = Settings {
        eligible_age: Some(30 * MINUTE),
        forced_age: Some(40 * MINUTE),
        ondemand_age: Some(2 * MINUTE),
        ..settings()
    };
    let known = |on_demand, known_for| {
        with(1, move |member| {
            member.record.on_demand = on_demand;
            member.known_for = known_for;
        })
    };
    let next = |world: &World| world.plan(now()).next_look;
    let world = check_with(Some(group(1)), vec![known(false, MINUTE)], aged.clone(), &[]);
    assert!(next(&world).is_some_and(|next| next <= now() + 4 * MINUTE), "it is looked at again");
    check_with(Some(group(1)), vec![known(false, 5 * MINUTE)], aged.clone(), &["create"]);
    // An age that is shorter than the time to register is waited for and no longer.
    let world = check_with(Some(group(0)), vec![known(true, MINUTE)], aged.clone(), &[]);
    assert_eq!(next(&world), Some(now() + MINUTE));
    check_with(Some(group(0)), vec![known(true, 2 * MINUTE)], aged, &["drain 1 ondemand-expiry"]);
    let unregistered = |known_for| {
        let member = with(1, |member| member.agent.registered = false);
        Member { known_for, ..member }
    };
    check(Some(group(1)), vec![unregistered(4 * MINUTE)], &[]);
    check(Some(group(1)), vec![unregistered(5 * MINUTE)], &["delete 1 unhealthy", "create"]);
}

#[test]
fn an_instance_whose_record_cannot_be_read_holds_its_place_and_costs_no_other() {
    let check = |size, members: Vec<Member>, unreadable, expected: &[&str]| {
        let mut world = World { unreadable, ..World::new(Some(group(size)), members) };
        assert_eq!(text(&world.round(now())), expected, "size {size}, {unreadable} unreadable");
        world
    };
    check(2, vec![member(1)], 1, &[]);
    check(3, vec![member(1)], 1, &["create"]);
    check(0, vec![], 3, &[]);
    check(2, vec![member(1), member(2)], 1, &[]);
    check(1, vec![member(1), member(2)], 1, &["drain 1 scale-down"]);
    // A replacement is made before its instance goes, also beside one that cannot be read.
    let drifted = with(1, |member| member.record.hash = "old".to_owned());
    let mut world = check(2, vec![drifted], 1, &["create"]);
    world.register(now());
    assert_eq!(text(&world.round(now())), ["drain 1 config-drift"]);
}

#[test]
fn a85_drift_rotates_one_instance_at_a_time() {
    let drifted = |number| with(number, |member| member.record.hash = "old".to_owned());
    let mut world = check(Some(group(2)), vec![drifted(1), drifted(2)], &["create"]);
    world.register(now());
    assert_eq!(text(&world.round(now())), ["drain 1 config-drift"]);
    world.find(&InstanceId::new("web", 1)).acknowledged = true;
    assert_eq!(text(&world.round(now())), ["delete 1 config-drift", "create"]);
    let outdated = with(1, |member| {
        pending(member);
        member.record.hash = "old".to_owned();
    });
    check(Some(group(1)), vec![outdated], &["delete 1 config-drift", "create"]);
    check(Some(group(1)), vec![drifted(1), with(2, draining)], &[]);
}

#[test]
fn marked_instances_are_replaced_at_an_unchanged_size() {
    let marked = Group { replace: BTreeSet::from([InstanceId::new("web", 2)]), ..group(2) };
    let mut world = check(Some(marked), vec![member(1), member(2)], &["create"]);
    world.register(now());
    assert_eq!(text(&world.round(now())), ["drain 2 request"]);
}

#[test]
fn a78_what_a_crash_left_is_linked_launched_or_given_up() {
    let found = with(1, |member| {
        pending(member);
        member.machine = Machine::There { provider_id: "i-9".to_owned(), status: MachineStatus::Pending };
    });
    check(Some(group(1)), vec![found], &["link 1 i-9"]);
    check(Some(group(1)), vec![with(1, pending)], &["launch 1"]);
    let waiting = with(1, |member| {
        pending(member);
        member.retry_at = Some(now() + MINUTE);
    });
    check(Some(group(1)), vec![waiting], &[]);
    let over = with(1, |member| {
        pending(member);
        member.record.created_at = ago(301);
    });
    check(Some(group(1)), vec![over], &["delete 1 unhealthy", "create"]);
    let on_demand = with(1, |member| {
        pending(member);
        member.record.on_demand = true;
        member.record.hash = "other".to_owned();
    });
    check(Some(group(0)), vec![on_demand.clone()], &["launch 1"]);
    check(None, vec![on_demand], &["delete 1 config-drift"]);
    let unregistered = with(1, |member| member.agent.registered = false);
    check(Some(group(1)), vec![unregistered], &["delete 1 unhealthy", "create"]);
}

#[test]
fn deleted_records_are_forgotten_after_their_retention() {
    check(Some(group(0)), vec![with(1, |member| member.record.deleted_at = Some(ago(1800)))], &["forget 1"]);
    let world = check(Some(group(0)), vec![with(1, |member| member.record.deleted_at = Some(ago(1799)))], &[]);
    assert_eq!(world.plan(now()).next_look, Some(now() + Duration::from_secs(1)));
}

#[test]
fn full_subnets_and_failed_creations_hold_creation_back() {
    let group = group(3);
    let subnets = [Subnet { id: "a".to_owned(), free: Some(0) }, Subnet { id: "b".to_owned(), free: Some(2) }];
    let observed = Observed {
        group: Some(&group),
        members: &[],
        subnets: &subnets,
        ids: &[1, 2, 3],
        create_after: None,
        unreadable: 0,
    };
    let round = plan(observed, &settings(), now());
    assert_eq!(text(&round.actions), ["create", "create"]);
    assert_eq!(round.blocked, Some("every subnet of the pool is full"));
    let later = now() + MINUTE;
    let round = plan(Observed { create_after: Some(later), ..observed }, &settings(), now());
    assert_eq!((text(&round.actions).len(), round.next_look), (0, Some(later)));
    let round = plan(Observed { ids: &[1], ..observed }, &settings(), now());
    assert_eq!(text(&round.actions), ["create"], "no more than there are ids");
}

fn any_member() -> impl Strategy<Value = Member> {
    let fates = prop::collection::vec(0..14u8, 0..3);
    (1..200u8, fates, 0..7200i64).prop_map(|(number, fates, age)| {
        let mut member = member(number);
        member.record.created_at = ago(age);
        for fate in fates {
            match fate {
                0 if member.agent.registered => silent(&mut member),
                1 => down(&mut member),
                2 if member.record.machine.is_some() => draining(&mut member),
                3 if member.agent.notice.is_none() && member.record.leaving.is_none() => pending(&mut member),
                4 if member.record.machine.is_some() => starting(&mut member),
                5 => member.machine = Machine::Unknown,
                6 => member.acknowledged = true,
                7 if member.record.machine.is_some() => member.agent.notice = Some(Some(now() + MINUTE)),
                8 => member.record.on_demand = true,
                9 => member.record.hash = "old".to_owned(),
                10 => member.record.deleted_at = Some(ago(age.min(1000))),
                11 => unheard(&mut member),
                12 => replacing(u128::from(number / 2), Reason::Unhealthy)(&mut member),
                _ => member.machine = Machine::Absent,
            }
        }
        member
    })
}

proptest! {
    /// Whatever there is: planning twice changes nothing, the group never has more than one instance too many by our
    /// doing, health is never given up below the size, and in the end the group is as it should be.
    #[test]
    fn every_world_converges(
        members in prop::collection::vec(any_member(), 0..12),
        size in 0..6i32,
        aged in any::<bool>(),
    ) {
        let mut ids = BTreeSet::new();
        let members: Vec<_> = members.into_iter().filter(|member| ids.insert(member.record.id.clone())).collect();
        let mut world = World::new(Some(group(size)), members);
        world.settings.eligible_age = aged.then_some(100 * MINUTE);
        let wanted = usize::try_from(size).unwrap();
        let mut at = now();
        for _ in 0..40 {
            let healthy = |world: &World| world.living().filter(|member| {
                !member.record.on_demand
                    && member.record.leaving.is_none()
                    && !member.acknowledged
                    && member.agent.notice.is_none()
                    && (member.agent.reported || !found_silent(world, member))
                    && member.health(&world.settings, at).0 == Health::Healthy
            }).count();
            let before = (world.staying(), healthy(&world));
            world.round(at);
            prop_assert!(world.staying() <= before.0.max(wanted + 1));
            prop_assert!(healthy(&world) >= before.1.min(wanted), "a healthy instance was given up");
            // Time passes: machines answer, agents report, the operator drains.
            at += MINUTE;
            let fresh = at;
            for member in &mut world.members {
                if member.machine == Machine::Unknown {
                    let provider_id = member.record.provider_id().to_owned();
                    member.machine = Machine::There { provider_id, status: MachineStatus::Running };
                }
                if member.record.machine.is_some() {
                    member.agent.registered = true;
                    if member.record.created_at >= now() {
                        report(member, fresh);
                        member.record.created_at = fresh;
                    }
                }
            }
        }
        prop_assert_eq!(world.staying(), wanted);
        prop_assert_eq!(world.living().filter(|member| member.record.leaving.is_some()).count(), 0);
    }

    /// The order in which instances are observed decides nothing.
    #[test]
    fn order_decides_nothing(members in prop::collection::vec(any_member(), 0..10), size in 0..5i32) {
        let mut ids = BTreeSet::new();
        let members: Vec<_> = members.into_iter().filter(|member| ids.insert(member.record.id.clone())).collect();
        let mut reversed = members.clone();
        reversed.reverse();
        let lines = |members| {
            let mut lines = text(&World::new(Some(group(size)), members).plan(now()).actions);
            lines.sort();
            lines
        };
        prop_assert_eq!(lines(members), lines(reversed));
    }
}
