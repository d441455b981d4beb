"""What one rank's part of the model states looks like as bytes."""
