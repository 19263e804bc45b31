//! The token with which a node joins a cluster.

use core::fmt;
use core::str::FromStr;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::rand::{SecureRandom as _, SystemRandom};
use zeroize::Zeroizing;

use crate::node_key::{KEY_BYTES, PublicKey};

/// Length of a token's secret in bytes.
const SECRET_BYTES: usize = 16;

/// A token: the key of the node that signs, by which nobody else is taken for it, and a secret that
/// only those know who may join. As text it is 64 letters of base64, as in URLs.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    issuer: PublicKey,
    secret: Zeroizing<[u8; SECRET_BYTES]>,
}

/// Text that is no token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("is no token: write what `pipectl cluster token create` printed on a node that signs")]
pub struct NoToken;

impl JoinToken {
    /// Makes a token for nodes that join at the node of this key.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn generate(issuer: PublicKey) -> std::io::Result<Self> {
        let mut secret = Zeroizing::new([0; SECRET_BYTES]);
        let filled = SystemRandom::new().fill(secret.as_mut_slice());
        filled.map_err(|_| std::io::Error::other("the system gives no randomness"))?;
        Ok(Self { issuer, secret })
    }

    /// The key of the node that signs.
    #[must_use]
    pub const fn issuer(&self) -> PublicKey {
        self.issuer
    }

    /// The secret that only those know who may join.
    #[must_use]
    pub fn secret(&self) -> &[u8] {
        self.secret.as_slice()
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinToken").field("issuer", &self.issuer).finish_non_exhaustive()
    }
}

impl FromStr for JoinToken {
    type Err = NoToken;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bytes = Zeroizing::new(BASE64_URL_SAFE_NO_PAD.decode(text).map_err(|_| NoToken)?);
        let (issuer, secret) = bytes.split_first_chunk::<KEY_BYTES>().ok_or(NoToken)?;
        let secret = Zeroizing::new(secret.try_into().map_err(|_| NoToken)?);
        Ok(Self { issuer: PublicKey::new(*issuer), secret })
    }
}

impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = Zeroizing::new([self.issuer.as_bytes().as_slice(), self.secret()].concat());
        f.write_str(&BASE64_URL_SAFE_NO_PAD.encode(bytes.as_slice()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeKey;

    #[test]
    fn a_token_is_read_back_and_shows_its_secret_only_when_it_is_printed() {
        let issuer = NodeKey::generate().expect("random").public();
        let token = JoinToken::generate(issuer).expect("random");
        let text = token.to_string();
        assert_eq!((text.len(), text.parse()), (64, Ok(token.clone())));
        assert!(text.chars().all(|it| it.is_ascii_alphanumeric() || matches!(it, '-' | '_')));
        let secret = BASE64_URL_SAFE_NO_PAD.encode(token.secret());
        assert!(!format!("{token:?}").contains(&secret));
        assert_ne!(JoinToken::generate(issuer).expect("random"), token);
        for text in ["", &text[1..], &issuer.to_string()] {
            assert_eq!(text.parse::<JoinToken>(), Err(NoToken), "{text}");
        }
    }
}
