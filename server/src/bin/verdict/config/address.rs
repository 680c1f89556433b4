//! Addresses as people write them.

use std::{fmt, net::IpAddr};

/// `host:port`, where the host is a name, an IPv4 address, or an IPv6 address in brackets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    host: String,
    port: u16,
}

impl Address {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no address: write host:port, such as 127.0.0.1:7401");
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let port: u16 = port.parse().map_err(|_| wrong())?;
        let bare = match host.strip_prefix('[') {
            Some(rest) => rest.strip_suffix(']').filter(|host| host.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6())),
            None => Some(host).filter(|host| {
                !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
            }),
        };
        Ok(Self { host: bare.ok_or_else(wrong)?.to_owned(), port })
    }

    pub(crate) fn is_loopback(&self) -> bool {
        is_loopback(&self.host)
    }
}

/// Whether a host is this machine.
pub(super) fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// The address in `http://host:port`.
pub(crate) fn endpoint(text: &str) -> Result<Address, String> {
    let wrong = || {
        format!(
            "{text:?} is no endpoint: write http://host:port, such as http://127.0.0.1:7501, stream if the participant opens a \
             stream itself, or postgres or mariadb if it is such a database"
        )
    };
    if text.starts_with("https://") {
        return Err(format!("{text:?} asks for TLS, which this version does not speak: write http://host:port"));
    }
    let rest = text.strip_prefix("http://").ok_or_else(wrong)?;
    Address::parse(rest.trim_end_matches('/')).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (text, loopback) in [
            ("127.0.0.1:7401", true),
            ("127.8.0.1:1", true),
            ("localhost:7401", true),
            ("[::1]:7401", true),
            ("0.0.0.0:7401", false),
            ("[::]:7401", false),
            ("10.0.0.1:7401", false),
            ("node-1.example.org:7401", false),
        ] {
            let address = Address::parse(text);
            assert_eq!(address.as_ref().map(Address::is_loopback), Ok(loopback), "{text}");
            assert_eq!(address.map(|address| address.to_string()).as_deref(), Ok(text));
        }
        for text in
            ["", "7401", ":7401", "host", "host:", "host:70000", "::1:7401", "[::1:7401", "a b:1", "[1.2.3.4]:1"]
        {
            assert!(Address::parse(text).is_err(), "{text}");
        }
        for text in ["127.0.0.1:1", "https://127.0.0.1:1", "http://", "http://host/path:1"] {
            assert!(endpoint(text).is_err(), "{text}");
        }
        assert!(endpoint("http://127.0.0.1:7501/").is_ok());
    }
}
