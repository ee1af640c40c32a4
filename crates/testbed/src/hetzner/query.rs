//! The part of a request behind the question mark, and lists that are cut into pages by it.

use std::{cmp::Ordering, fmt::Write};

use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::{Value, json};

use super::refusal::Refusal;

/// What the API gives where a request asks for nothing, and the most it gives.
const DEFAULT_PER_PAGE: usize = 25;
const MOST_PER_PAGE: usize = 50;

#[derive(Debug, Default)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    pub fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(key), decode(value))
        });
        Self(pairs.collect())
    }

    pub fn first(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    pub fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// Whether the request leaves this filter out, or names the value among those it wants.
    pub fn admits(&self, key: &str, value: &str) -> bool {
        let mut wanted = self.all(key).peekable();
        wanted.peek().is_none() || wanted.any(|wanted| wanted == value)
    }

    fn number(&self, key: &str, default: usize) -> Result<usize, Refusal> {
        let Some(text) = self.first(key) else { return Ok(default) };
        let number = text.parse().ok().filter(|number| *number > 0);
        number.ok_or_else(|| Refusal::invalid(key, "must be a number greater than 0"))
    }

    /// Sorts and cuts what is shown already.
    pub fn page(&self, items: Vec<Value>, sortable: &[&str]) -> Result<Page<Value>, Refusal> {
        self.page_of(items, sortable, |item, key| item[key].clone())
    }

    /// The same for items that are costly to show: the caller shows those on the page alone.
    pub fn page_of<T>(
        &self,
        mut items: Vec<T>,
        sortable: &[&str],
        key_of: impl Fn(&T, &str) -> Value,
    ) -> Result<Page<T>, Refusal> {
        let keys: Vec<(&str, bool)> = self.all("sort").map(|key| sort_key(key, sortable)).collect::<Result<_, _>>()?;
        items.sort_by(|a, b| {
            let by_key = keys.iter().map(|(key, descending)| {
                let order = compare(&key_of(a, key), &key_of(b, key));
                if *descending { order.reverse() } else { order }
            });
            by_key.fold(Ordering::Equal, Ordering::then)
        });
        let (page, per_page) = (self.number("page", 1)?, self.number("per_page", DEFAULT_PER_PAGE)?.min(MOST_PER_PAGE));
        let total = items.len();
        let last = total.div_ceil(per_page).max(1);
        let on_page = items.into_iter().skip((page - 1).saturating_mul(per_page)).take(per_page);
        let pagination = Pagination {
            page,
            per_page,
            previous_page: (page > 1).then(|| page - 1),
            next_page: (page < last).then(|| page + 1),
            last_page: last,
            total_entries: total,
        };
        Ok(Page { items: on_page.collect(), pagination })
    }
}

/// A part of a list.
#[derive(Debug)]
pub(super) struct Page<T> {
    pub items: Vec<T>,
    pub pagination: Pagination,
}

/// The vendor's description of a page.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Pagination {
    page: usize,
    per_page: usize,
    previous_page: Option<usize>,
    next_page: Option<usize>,
    last_page: usize,
    total_entries: usize,
}

/// The answer to a list: the items under their kind's name, and the vendor's `meta`.
pub(super) struct Listed<'a, T> {
    pub name: &'a str,
    pub page: &'a Page<T>,
}

impl<T: Serialize> Serialize for Listed<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_map(Some(2))?;
        fields.serialize_entry(self.name, &self.page.items)?;
        fields.serialize_entry("meta", &json!({ "pagination": self.page.pagination }))?;
        fields.end()
    }
}

fn sort_key<'a>(key: &'a str, sortable: &[&str]) -> Result<(&'a str, bool), Refusal> {
    let (key, direction) = key.split_once(':').unwrap_or((key, "asc"));
    let is_known = sortable.contains(&key) && ["asc", "desc"].contains(&direction);
    if is_known { Ok((key, direction == "desc")) } else { Err(Refusal::invalid("sort", "is not a valid sort")) }
}

fn compare(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_i64().cmp(&b.as_i64()),
        _ => a.as_str().cmp(&b.as_str()),
    }
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let mut hex = rest.clone();
        let pair = || Some([hex.next()?, hex.next()?]);
        match byte {
            b'+' => bytes.push(b' '),
            b'%' => match Some(pair).and_then(|mut pair| pair()).and_then(from_hex) {
                Some(decoded) => {
                    bytes.push(decoded);
                    rest.nth(1);
                }
                None => bytes.push(byte),
            },
            _ => bytes.push(byte),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn from_hex(pair: [u8; 2]) -> Option<u8> {
    let digits = pair.map(|digit| char::from(digit).to_digit(16));
    u8::try_from(digits[0]? * 16 + digits[1]?).ok()
}

/// The `Link` header, which some clients page by.
pub(super) fn links(base: &str, path: &str, pagination: &Pagination) -> String {
    let Pagination { per_page, previous_page, next_page, last_page, .. } = *pagination;
    let mut links = String::new();
    for (page, relation) in [(previous_page, "prev"), (next_page, "next"), (Some(last_page), "last")] {
        let Some(page) = page else { continue };
        let separator = if links.is_empty() { "" } else { ", " };
        let _ = write!(links, "{separator}<{base}{path}?page={page}&per_page={per_page}>; rel={relation}");
    }
    links
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_decoded_and_broken_escapes_stay() {
        let query = Query::parse("label_selector=a%3Db%2Cc&name=x+y&bad=%zz%4&empty");
        assert_eq!(query.first("label_selector"), Some("a=b,c"));
        assert_eq!(query.first("name"), Some("x y"));
        assert_eq!(query.first("bad"), Some("%zz%4"));
        assert_eq!(query.first("empty"), Some(""));
    }

    #[test]
    fn pages_say_where_they_are() {
        let items: Vec<Value> = (0..60).map(|id| json!({ "id": id })).collect();
        let page = Query::parse("page=2&per_page=50&sort=id:desc").page(items, &["id"]).unwrap();
        let page = json!(Listed { name: "things", page: &page });
        assert_eq!(page["things"].as_array().map(Vec::len), Some(10));
        assert_eq!(page["things"][0]["id"], 9);
        let pagination = &page["meta"]["pagination"];
        assert_eq!(pagination["previous_page"], 1);
        assert_eq!(pagination["next_page"], Value::Null);
        assert_eq!(pagination["total_entries"], 60);
        assert_eq!(Query::parse("page=0").page(Vec::new(), &[]).unwrap_err().code, "invalid_input");
        assert_eq!(Query::parse("sort=price").page(Vec::new(), &[]).unwrap_err().code, "invalid_input");
    }
}
