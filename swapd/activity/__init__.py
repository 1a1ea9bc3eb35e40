"""What a lent machine did while its owner was away: counted as it happens, told for any time since."""
