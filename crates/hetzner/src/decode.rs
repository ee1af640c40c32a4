//! Answers into types. Any bytes may come: a proxy's page, half an answer, a later version of the API.

use std::collections::BTreeMap;

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use crate::{
    error::Cause,
    resource::{Action, Resource},
};

/// Its parts, where they are in the answer: a page is long, and is copied once at most, into its types.
type Envelope<'a> = BTreeMap<String, &'a RawValue>;

/// One page of a list.
#[derive(Clone, Debug, PartialEq)]
pub struct Page<R> {
    pub items: Vec<R>,
    pub next: Option<u32>,
    /// Of the whole list, where the API says so.
    pub total: Option<u64>,
}

#[derive(Deserialize)]
struct Meta {
    pagination: Option<Pagination>,
}

#[derive(Deserialize)]
struct Pagination {
    next_page: Option<u32>,
    total_entries: Option<u64>,
}

pub fn decode_page<R: Resource>(body: &[u8]) -> Result<Page<R>, Cause> {
    page(body, R::MANY)
}

pub(crate) fn page<T: DeserializeOwned>(body: &[u8], many: &str) -> Result<Page<T>, Cause> {
    let envelope = envelope(body)?;
    let items = field(&envelope, many)?;
    let meta: Option<Meta> = optional(&envelope, "meta")?;
    let pagination = meta.and_then(|meta| meta.pagination);
    let (next, total) = pagination.map_or((None, None), |of| (of.next_page, of.total_entries));
    // Some clients' servers say 0 where there is no next page.
    Ok(Page { items, next: next.filter(|page| *page > 0), total })
}

/// One resource, and the actions that its change began.
pub fn decode_one<R: Resource>(body: &[u8]) -> Result<(R, Vec<Action>), Cause> {
    let envelope = envelope(body)?;
    Ok((field(&envelope, R::ONE)?, actions_in(&envelope)?))
}

/// The actions in the answer to a change; an empty answer has none.
pub(crate) fn actions(body: &[u8]) -> Result<Vec<Action>, Cause> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(Vec::new());
    }
    actions_in(&envelope(body)?)
}

fn actions_in(envelope: &Envelope<'_>) -> Result<Vec<Action>, Cause> {
    let mut actions: Vec<Action> = optional(envelope, "action")?.into_iter().collect();
    for several in ["actions", "next_actions"] {
        actions.extend(optional::<Vec<Action>>(envelope, several)?.unwrap_or_default());
    }
    Ok(actions)
}

/// Code and message of a refusal. What is no error of the API's shape has the status alone.
pub fn decode_error(status: u16, body: &[u8]) -> (String, String) {
    #[derive(Deserialize)]
    struct Refused {
        error: Inner,
    }
    #[derive(Deserialize)]
    struct Inner {
        #[serde(default)]
        code: String,
        #[serde(default)]
        message: String,
    }
    match serde_json::from_slice::<Refused>(body) {
        Ok(Refused { error }) => (error.code, shown(&error.message)),
        Err(_) => (String::new(), format!("status {status} without the API's explanation")),
    }
}

/// A message goes into logs and conditions: bounded, and on one line.
fn shown(message: &str) -> String {
    /// The longest real ones have some 200 characters.
    const LONGEST: usize = 500;
    message.chars().take(LONGEST).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn envelope(body: &[u8]) -> Result<Envelope<'_>, Cause> {
    let undecodable = |error: serde_json::Error| {
        let why = format!("it is not a JSON object at line {}, column {}", error.line(), error.column());
        Cause::Undecodable { why, is_cut_short: error.is_eof() }
    };
    serde_json::from_slice(body).map_err(undecodable)
}

fn field<T: DeserializeOwned>(envelope: &Envelope<'_>, name: &str) -> Result<T, Cause> {
    let missing = || Cause::Undecodable { why: format!("it has no field {name}"), is_cut_short: false };
    let raw = envelope.get(name).ok_or_else(missing)?;
    serde_json::from_str(raw.get()).map_err(|error| mistyped(name, &error))
}

/// Absent and null are the same.
fn optional<T: DeserializeOwned>(envelope: &Envelope<'_>, name: &str) -> Result<Option<T>, Cause> {
    envelope.get(name).map_or(Ok(None), |raw| serde_json::from_str(raw.get()).map_err(|error| mistyped(name, &error)))
}

/// What is inside a whole answer is JSON: it can only be of another type than documented.
fn mistyped(what: &str, error: &serde_json::Error) -> Cause {
    // serde's text may quote values: user data, names. Where it is wrong is enough.
    let (line, column) = (error.line(), error.column());
    let why = format!("{what} has another type than documented at line {line}, column {column}");
    Cause::Undecodable { why, is_cut_short: false }
}
