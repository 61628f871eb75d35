"""The command line: ``polyattn list | show | explain | check | compare``, one module each."""
