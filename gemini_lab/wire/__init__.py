"""How the processes of a lab talk: messages over TCP and over a socket pair."""
