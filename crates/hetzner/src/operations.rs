//! Changes to what there is. Each looks first, so that repeating it changes nothing more.

use std::net::Ipv4Addr;

use http::Method;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    client::{Client, encoded},
    decode::{self, decode_page},
    ensure::{Ensured, Wanted},
    error::{Cause, Class, Error},
    look::Since,
    resource::{
        Firewall, FirewallRule, Image, ImageStatus, Labels, LoadBalancer, LoadBalancerService, Network, Resource,
        Server, ServerStatus, SshKey,
    },
};

/// What a server is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    PowerOn,
    /// At once, as by pulling the plug.
    PowerOff,
    Reboot,
    Reset,
}

/// Where in a network an interface is to be; the API chooses what is left open.
#[derive(Clone, Debug, Default)]
pub struct NetworkAddress {
    pub network: i64,
    pub ip: Option<Ipv4Addr>,
    /// The subnet.
    pub ip_range: Option<String>,
}

/// A service of a load balancer; `body` has the API's fields for it.
#[derive(Clone, Debug)]
pub struct ServiceWanted {
    pub listen_port: u16,
    pub body: Value,
}

impl Command {
    fn path(self) -> &'static str {
        match self {
            Self::PowerOn => "poweron",
            Self::PowerOff => "poweroff",
            Self::Reboot => "reboot",
            Self::Reset => "reset",
        }
    }

    /// The state in which there is nothing left to do.
    fn goal(self) -> Option<ServerStatus> {
        match self {
            Self::PowerOn => Some(ServerStatus::Running),
            Self::PowerOff => Some(ServerStatus::Off),
            Self::Reboot | Self::Reset => None,
        }
    }
}

impl NetworkAddress {
    fn body(&self) -> Value {
        let mut body = json!({ "network": self.network });
        if let Some(ip) = self.ip {
            body["ip"] = json!(ip);
        }
        if let Some(range) = &self.ip_range {
            body["ip_range"] = json!(range);
        }
        body
    }
}

fn is_refused(error: &Error) -> bool {
    matches!(error.cause, Cause::Refused { .. }) && matches!(error.class(), Class::Conflict | Class::RateLimited)
}

impl Client {
    /// One action on one resource, once.
    async fn act<R: Resource>(&self, id: i64, command: &str, body: &Value) -> Result<(), Error> {
        let path = format!("/{}/{id}/actions/{command}", R::MANY);
        let answer = self.send(Method::POST, &path, Some(body)).await?;
        let actions = decode::actions(&answer).map_err(|cause| Error::new(format!("POST {path}"), cause))?;
        self.wait(actions).await
    }

    /// A resource that a change needs.
    async fn present<R: Resource>(&self, id: i64) -> Result<R, Error> {
        let cause = || Cause::Refused {
            status: 404,
            code: "not_found".to_owned(),
            message: format!("{} {id} does not exist", R::ONE),
            retry_after: None,
        };
        self.get(id).await?.ok_or_else(|| Error::new(format!("GET /{}/{id}", R::MANY), cause()))
    }

    /// A reboot or reset whose answer is lost is not repeated: it may have happened.
    pub async fn command(&self, server: i64, command: Command) -> Result<(), Error> {
        let Some(goal) = command.goal() else {
            let mut retry = self.retry();
            loop {
                match self.act::<Server>(server, command.path(), &json!({})).await {
                    // Refused before anything was done; a fault of the API's own leaves that open.
                    Err(error) if error.is_passing() && is_refused(&error) => retry.wait(error).await?,
                    other => return other,
                }
            }
        };
        let observe = || async move {
            let found: Server = self.present(server).await?;
            Ok((found.status == goal && !found.locked).then_some(()))
        };
        self.settle(observe, || async move { self.act::<Server>(server, command.path(), &json!({})).await }).await
    }

    /// The server's address in the network.
    pub async fn attach_server(&self, server: i64, to: &NetworkAddress) -> Result<Ipv4Addr, Error> {
        let observe = || async move {
            let found: Server = self.present(server).await?;
            Ok(found.private_net.iter().find(|net| net.network == to.network).map(|net| net.ip))
        };
        let attach = || async move { self.act::<Server>(server, "attach_to_network", &to.body()).await };
        self.attach(observe, attach).await
    }

    /// The load balancer's address in the network.
    pub async fn attach_load_balancer(&self, balancer: i64, to: &NetworkAddress) -> Result<Ipv4Addr, Error> {
        let observe = || async move {
            let found: LoadBalancer = self.present(balancer).await?;
            Ok(found.private_net.iter().find(|net| net.network == to.network).and_then(|net| net.ip))
        };
        let attach = || async move { self.act::<LoadBalancer>(balancer, "attach_to_network", &to.body()).await };
        self.attach(observe, attach).await
    }

    async fn attach<O, A>(&self, observe: impl Fn() -> O, attach: impl Fn() -> A) -> Result<Ipv4Addr, Error>
    where
        O: Future<Output = Result<Option<Ipv4Addr>, Error>>,
        A: Future<Output = Result<(), Error>>,
    {
        let (observe, attach) = (&observe, &attach);
        let act = || async move {
            match attach().await {
                // An attempt whose answer was lost; its action may still run.
                Err(error) if error.code().is_some_and(|code| code.ends_with("_already_attached")) => {}
                other => other?,
            }
            observe().await?.ok_or_else(|| Error::new("POST …/actions/attach_to_network", Cause::Unseen))
        };
        self.settle(observe, act).await
    }

    pub async fn ensure_subnet(&self, network: i64, ip_range: &str, network_zone: &str) -> Result<(), Error> {
        let body = &json!({ "type": "cloud", "ip_range": ip_range, "network_zone": network_zone });
        let observe = || async move {
            let found: Network = self.present(network).await?;
            Ok(found.subnets.iter().any(|subnet| subnet.ip_range.as_deref() == Some(ip_range)).then_some(()))
        };
        self.settle(observe, || async move { self.act::<Network>(network, "add_subnet", body).await }).await
    }

    /// A service that listens on the port exists; one that forwards elsewhere is left as it is and returned.
    pub async fn ensure_service(&self, balancer: i64, wanted: &ServiceWanted) -> Result<LoadBalancerService, Error> {
        let mut body = wanted.body.clone();
        body["listen_port"] = json!(wanted.listen_port);
        let body = &body;
        let observe = &|| async move {
            let found: LoadBalancer = self.present(balancer).await?;
            Ok(found.services.into_iter().find(|service| service.listen_port == wanted.listen_port))
        };
        let act = || async move {
            self.act::<LoadBalancer>(balancer, "add_service", body).await?;
            observe().await?.ok_or_else(|| Error::new("POST …/actions/add_service", Cause::Unseen))
        };
        self.settle(observe, act).await
    }

    /// The servers with these labels are targets, by their private addresses.
    pub async fn ensure_target(&self, balancer: i64, selector: &str) -> Result<(), Error> {
        let body =
            &json!({ "type": "label_selector", "label_selector": { "selector": selector }, "use_private_ip": true });
        let observe = || async move {
            let found: LoadBalancer = self.present(balancer).await?;
            let mut selectors = found.targets.iter().filter_map(|target| target.label_selector.as_ref());
            Ok(selectors.any(|of| of.selector == selector).then_some(()))
        };
        self.settle(observe, || async move { self.act::<LoadBalancer>(balancer, "add_target", body).await }).await
    }

    /// The firewall has these rules and applies to the servers that the selector chooses.
    pub async fn ensure_rules(&self, firewall: i64, rules: &[FirewallRule], selector: &str) -> Result<(), Error> {
        let observe = || async move {
            let found: Firewall = self.present(firewall).await?;
            Ok((found.rules == rules).then_some(()))
        };
        let body = &json!({ "rules": rules });
        self.settle(observe, || async move { self.act::<Firewall>(firewall, "set_rules", body).await }).await?;
        let observe = || async move {
            let found: Firewall = self.present(firewall).await?;
            let mut selectors = found.applied_to.iter().filter_map(|target| target.label_selector.as_ref());
            Ok(selectors.any(|of| of.selector == selector).then_some(()))
        };
        let body = &json!({ "apply_to": [{ "type": "label_selector", "label_selector": { "selector": selector } }] });
        self.settle(observe, || async move { self.act::<Firewall>(firewall, "apply_to_resources", body).await }).await
    }

    /// No selector chooses servers for the firewall any more: then it can be deleted.
    pub async fn remove_selectors(&self, firewall: &Firewall) -> Result<(), Error> {
        let of = |wall: &Firewall| -> Vec<Value> {
            let selectors = wall.applied_to.iter().filter_map(|target| target.label_selector.as_ref());
            selectors
                .map(|of| json!({ "type": "label_selector", "label_selector": { "selector": of.selector } }))
                .collect()
        };
        let body = &json!({ "remove_from": of(firewall) });
        let observe = || async move {
            let found: Option<Firewall> = self.get(firewall.id).await?;
            Ok(found.is_none_or(|found| of(&found).is_empty()).then_some(()))
        };
        let act = || async move { self.act::<Firewall>(firewall.id, "remove_from_resources", body).await };
        self.settle(observe, act).await
    }

    /// A snapshot with exactly these labels among its own: of several the newest that is available, else the newest that
    /// is being made. Snapshots have no names: their labels identify them.
    pub async fn snapshot(&self, labels: &Labels) -> Result<Option<Image>, Error> {
        let terms: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let selector = encoded(&terms.join(","));
        let path = format!("/images?type=snapshot&label_selector={selector}&sort=created:desc&per_page=50");
        let page = self.read(&path, decode_page::<Image>).await?;
        let (available, others): (Vec<_>, Vec<_>) =
            page.items.into_iter().partition(|image| image.status == ImageStatus::Available);
        let being_made = others.into_iter().filter(|image| image.status != ImageStatus::Unavailable);
        Ok(available.into_iter().chain(being_made).next())
    }

    /// Whether an image will never be there: its server is gone, or failed to make one since.
    async fn has_failed(&self, builder: i64, image: &Image) -> Result<bool, Error> {
        if self.get::<Server>(builder).await?.is_none() {
            return Ok(true);
        }
        let failed = self.actions::<Server>(builder, "error").await?;
        Ok(failed.iter().any(|action| action.command == "create_image" && action.started >= image.created))
    }

    /// An image that a server can be made from. One that is being made, be it of another server, is waited for; one
    /// that will never be there is made again.
    pub async fn ensure_snapshot(&self, server: i64, description: &str, labels: &Labels) -> Result<Image, Error> {
        let body = &json!({ "type": "snapshot", "description": description, "labels": labels });
        let observe = || async move {
            let Some(image) = self.snapshot(labels).await? else { return Ok(None) };
            if image.status == ImageStatus::Available {
                return Ok(Some(image));
            }
            let builder = image.created_from.as_ref().map_or(server, |from| from.id);
            self.wait(self.actions::<Server>(builder, "running").await?).await?;
            let Some(image) = self.get::<Image>(image.id).await? else { return Ok(None) };
            if image.status == ImageStatus::Available {
                return Ok(Some(image));
            }
            if self.has_failed(builder, &image).await? {
                self.delete::<Image>(image.id).await?;
                return Ok(None);
            }
            // The end of an action may show before what it made.
            Err(Error::new(format!("GET /images/{}", image.id), Cause::Unseen))
        };
        let act = || async move {
            self.act::<Server>(server, "create_image", body).await?;
            let unseen = || Error::new("POST …/actions/create_image", Cause::Unseen);
            self.snapshot(labels).await?.filter(|image| image.status == ImageStatus::Available).ok_or_else(unseen)
        };
        self.settle(observe, act).await
    }

    /// A server that was created with a key only so that Hetzner mails no root password. The key is removed whatever
    /// became of the server; one that an ended process left is found by its name, or by [`Client::sweep_keys`].
    pub async fn ensure_server_with_key(&self, wanted: &Wanted, key: &Wanted) -> Result<Ensured<Server>, Error> {
        let made: Ensured<SshKey> = self.ensure(key).await?;
        let mut wanted = wanted.clone();
        wanted.body["ssh_keys"] = json!([made.resource.id]);
        let server = self.ensure(&wanted).await;
        let removed = self.delete::<SshKey>(made.resource.id).await;
        // The server's own error says more.
        server.and_then(|server| removed.map(|()| server))
    }

    /// Removes keys with this label that are older than any creation can take.
    pub async fn sweep_keys(&self, owner: (&str, &str), created_before: Timestamp) -> Result<usize, Error> {
        let keys = self.look::<SshKey>(Since::At(tokio::time::Instant::now())).await?;
        let (label, value) = owner;
        let is_stray =
            |key: &&SshKey| key.labels.get(label).map(String::as_str) == Some(value) && key.created < created_before;
        let mut removed = 0;
        for key in keys.items.iter().filter(is_stray) {
            self.delete::<SshKey>(key.id).await?;
            removed += 1;
        }
        Ok(removed)
    }

    /// As the API gives them.
    pub async fn pricing(&self) -> Result<Value, Error> {
        let decode = |body: &[u8]| {
            let value: Result<Value, _> = serde_json::from_slice(body);
            let why = || "prices are not JSON".to_owned();
            value.map_err(|error| Cause::Undecodable { why: why(), is_cut_short: error.is_eof() })
        };
        Ok(self.read("/pricing", decode).await?["pricing"].take())
    }
}
