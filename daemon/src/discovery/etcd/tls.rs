//! TLS to a member of an etcd, by the files of the configuration.

use std::io;
use std::path::Path;
use std::sync::Arc;

use piped_config::{Endpoint, Etcd, read_text};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::Fault;

/// What a connection to a member needs beside TCP.
pub(super) enum Tls {
    /// Nothing: the member is asked in the clear.
    Plain,
    /// Certificates, and the name that the member's has to have.
    Secure(TlsConnector, ServerName<'static>),
}

impl Tls {
    /// Reads the files that are needed for a member.
    pub(super) fn of(etcd: &Etcd, endpoint: &Endpoint) -> Result<Self, Fault> {
        if !endpoint.is_secure() {
            return Ok(Self::Plain);
        }
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&etcd.ca_file)? {
            roots.add(certificate).map_err(|error| unusable(&etcd.ca_file, &error))?;
        }
        let config = ClientConfig::builder().with_root_certificates(roots);
        let config = if etcd.certificate_file.as_os_str().is_empty() {
            config.with_no_client_auth()
        } else {
            let key = PrivateKeyDer::from_pem_slice(text(&etcd.key_file)?.as_bytes())
                .map_err(|error| unusable(&etcd.key_file, &error))?;
            config
                .with_client_auth_cert(certificates(&etcd.certificate_file)?, key)
                .map_err(|error| unusable(&etcd.certificate_file, &error))?
        };
        let host = endpoint.host().to_owned();
        let name =
            ServerName::try_from(host).map_err(|error| io::Error::other(error.to_string()))?;
        Ok(Self::Secure(TlsConnector::from(Arc::new(config)), name))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Fault> {
    let text = text(path)?;
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    let read = read.map_err(|error| unusable(path, &error))?;
    if read.is_empty() {
        return Err(unusable(path, &"it has no certificate"));
    }
    Ok(read)
}

fn text(path: &Path) -> Result<zeroize::Zeroizing<String>, Fault> {
    let text = read_text(path).map_err(|error| unusable(path, &error))?;
    Ok(zeroize::Zeroizing::new(text))
}

fn unusable(path: &Path, why: &dyn std::fmt::Display) -> Fault {
    Fault::Io(io::Error::other(format!("{} cannot be used: {why}", path.display())))
}
