"""What the experiment runner costs: durable results a second, a million rows, many experiments at once."""
